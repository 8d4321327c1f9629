"""The order in which a search asked for candidates and their outcomes arrived, as it happens.

A line for each event, with a digest of it and of all lines before it. A line that was cut short,
because its writer was killed, is not an event; anything else that is not as it was written is
refused.
"""

import errno
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from bqnes_jax.drivers import Recorded
from bqnes_jax.elastic import Arrived, Asked, Event
from bqnes_jax.errors import BQNESError
from bqnes_jax.files import Remote, explain_writing, read_log, refuse_damaged
from bqnes_jax.spaces import Space

_DIGITS = 16  # of a digest, which finds damage
_LIMIT = 1 << 30  # bytes: ten million candidates


class Journal:
    """The events of a search in a file, which grows with each."""

    def __init__(self, path: Path, space: Space) -> None:
        self._path = path
        self.events, self._digest = _read(path, space)
        arrived = sum(isinstance(event, Arrived) for event in self.events)
        self._pending = count_asked(self.events) - arrived

    def note(self, event: Event) -> None:
        """Write an event, for good when this returns, or before anything follows from it.

        From an arrival nothing follows but what is asked for next: both go to the disk together.
        """
        text = json.dumps(_as_json(event), separators=(",", ":"))
        digest = _chain(self._digest, text)
        # First a new line: whoever was killed may have left half of one.
        line = f"\n{digest} {text}".encode()
        if isinstance(self._path, Remote):
            self._add(self._path, line)
        else:
            self._pending += len(event.archs) if isinstance(event, Asked) else -1
            self._write(line, lasting=isinstance(event, Asked) or self._pending == 0)
        self._digest = digest
        self.events.append(event)

    def _add(self, path: Remote, line: bytes) -> None:
        """Write a line of its own number, which another process cannot have written."""
        try:
            path.append(line, len(self.events))
        except FileExistsError:
            raise BQNESError(
                f"{path} has been continued by another process, which was at work in this run, "
                "too; let one of them go on."
            ) from None

    def _write(self, line: bytes, *, lasting: bool) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        with explain_writing(str(self._path)):
            handle = os.open(self._path, flags, 0o666)
            try:
                if os.write(handle, line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                if lasting:
                    os.fsync(handle)
            finally:
                os.close(handle)

    def begin_as(self, events: Sequence[Event]) -> None:
        """Let it have these events first, unless it has others."""
        for own, other in zip(self.events, events, strict=False):
            if _as_json(own) != _as_json(other):
                raise BQNESError(
                    f"{self._path} has another order than the run that is to be done again; choose "
                    "another directory (--out)."
                )
        for event in events[len(self.events) :]:
            self.note(event)

    def include(self, recorded: Recorded | None, initial: int) -> None:
        """Let it have candidates of a search that had no journal, those that it lacks."""
        if recorded is None:
            return
        if not self.events:
            self.begin_as(events_of(recorded, initial))
            return
        archs, scores = np.asarray(recorded.archs), np.asarray(recorded.scores)
        asked = np.concatenate([event.archs for event in self.events if isinstance(event, Asked)])
        fresh = ~(archs[:, None] == asked).all(axis=2).any(axis=1)
        if fresh.any():
            self.note(Asked(archs[fresh], scores[fresh], 0))


def count_asked(events: Sequence[Event]) -> int:
    """Return how many candidates were asked for."""
    return sum(len(event.archs) for event in events if isinstance(event, Asked))


def events_of(recorded: Recorded, initial: int) -> list[Event]:
    """Return the events of a search that waited for each candidate."""
    archs, scores = np.asarray(recorded.archs), np.asarray(recorded.scores)
    first = min(initial, len(archs))
    events: list[Event] = [Asked(archs[:first], scores[:first], 0), *map(Arrived, range(first))]
    for i in range(first, len(archs)):
        events += [Asked(archs[i : i + 1], scores[i : i + 1], 0), Arrived(i)]
    return events


def _read(path: Path, space: Space) -> tuple[list[Event], str]:
    """Read the events of a file that may not be there, and the digest of all of them."""
    remedy = "remove it and give the command of the run again: what was trained is in its store."
    events: list[Event] = []
    digest = ""
    if not path.exists():
        return events, digest
    waiting: set[int] = set()
    asked = 0
    with refuse_damaged(path, "has been altered", remedy=remedy):
        for line in read_log(path, limit=_LIMIT).decode().split("\n"):
            own, _, text = line.partition(" ")
            if not text.endswith("}"):  # cut short
                continue
            if own != _chain(digest, text):
                raise ValueError(f"not as it was written after {len(events)} events")
            digest = own
            event = _from_json(json.loads(text), space)
            if isinstance(event, Asked):
                if 0 < event.room < len(waiting):
                    raise ValueError("more candidates are waited for than there is room")
                waiting |= set(range(asked, asked + len(event.archs)))
                asked += len(event.archs)
            else:
                waiting.remove(event.number)
            events.append(event)
    return events, digest


def _chain(before: str, text: str) -> str:
    return hashlib.sha256(f"{before} {text}".encode()).hexdigest()[:_DIGITS]


def _as_json(event: Event) -> dict[str, Any]:
    if isinstance(event, Arrived):
        return {"arrived": int(event.number)}
    scores = [float(score).hex() for score in event.scores]  # infinities, too
    return {"asked": event.archs.tolist(), "scores": scores, "room": int(event.room)}


def _from_json(content: dict[str, Any], space: Space) -> Event:
    """Return an event; ValueError, KeyError or TypeError if it is none of a search in a space."""
    if "arrived" in content:
        return Arrived(int(content["arrived"]))
    archs = np.asarray(content["asked"], np.int32)
    scores = np.array([float.fromhex(text) for text in content["scores"]], jnp.result_type(float))
    if archs.ndim != 2 or archs.shape != (len(scores), len(space.options)):
        raise ValueError("its candidates are of another space")
    if not np.all((archs >= 0) & (archs < space.options)) or content["room"] < 0:
        raise ValueError("its numbers are out of range")
    return Asked(archs, scores, int(content["room"]))
