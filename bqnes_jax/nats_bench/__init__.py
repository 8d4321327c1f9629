"""The published archives of NATS-Bench: results into a table, trained networks into a store.

archive.py     the files, one architecture at a time
pickles.py     what is in them, read without trust and without PyTorch
results.py     losses and accuracies of all seeds in one small file
networks.py    trained weights, converted and at work on images
importing.py   all of it, in a loop that goes on after a stop
"""

from bqnes_jax.nats_bench.archive import DATASETS, SEEDS, Archive, Training, open_archive
from bqnes_jax.nats_bench.importing import Destination, import_archive
from bqnes_jax.nats_bench.networks import (
    Network,
    Task,
    make_task,
    predict_published,
    store_manifest,
)
from bqnes_jax.nats_bench.pickles import Tensor, unpickle
from bqnes_jax.nats_bench.results import (
    PUBLISHED_FIGURES,
    Figures,
    Results,
    agree,
    figures,
    read_results,
    write_results,
)

__all__ = [
    "DATASETS",
    "PUBLISHED_FIGURES",
    "SEEDS",
    "Archive",
    "Destination",
    "Figures",
    "Network",
    "Results",
    "Task",
    "Tensor",
    "Training",
    "agree",
    "figures",
    "import_archive",
    "make_task",
    "open_archive",
    "predict_published",
    "read_results",
    "store_manifest",
    "unpickle",
    "write_results",
]
