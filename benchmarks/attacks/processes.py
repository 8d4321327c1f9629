"""Processes that can be killed, and that have imported everything when they start."""

import multiprocessing


def forked():
    """Return what makes processes that have imported everything."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(
        ["bqnes_jax.cli.commands", "bqnes_jax.report", "tests.helpers.loaders"]
    )
    return processes
