"""What was counted so far: tried, survived, lost, silent."""

import json
from pathlib import Path

from bqnes_jax.files import write_json, write_whole

PARTS = {
    "kills": "kills, by command and moment",
    "altered": "altered files of a run, by file",
    "archives": "hostile archives, by reader",
    "calls": "calls with odd numbers, by function",
    "writers": "rounds of 5 writers that are killed",
}
OUTCOMES = ("tried", "survived", "lost", "silent")
NOTE = (
    "Silent is a NaN out of finite numbers without a status, or a result that changed unnoticed; a "
    "NaN that a function was given may come out again."
)


class Tally:
    """What was counted so far, on disk after each piece."""

    def __init__(self, path: Path):
        self._path = path
        self.content = json.loads(path.read_text()) if path.is_file() else {}

    def of(self, part: str) -> dict:
        return self.content.setdefault(part, {})

    def tried(self, part: str, name: str | None = None) -> int:
        """Return how often a part was tried, or one thing in it."""
        counted = self.of(part)
        if name is not None:
            return counted[name]["tried"] if name in counted else 0
        return sum(one["tried"] for one in counted.values())

    def add(self, part: str, name: str, note: str = "", **counts: int) -> None:
        one = self.of(part).setdefault(name, dict.fromkeys(OUTCOMES, 0) | {"notes": []})
        for outcome, count in counts.items():
            one[outcome] += count
        if note and note not in one["notes"]:
            one["notes"] = [*one["notes"], note][:5]

    def write(self) -> None:
        write_json(self._path, self.content)
        write_whole(self._path.with_suffix(".md"), self.as_markdown().encode())

    def as_markdown(self) -> str:
        lines = ["# What survives", "", "Made by `benchmarks/reliability.py`.", "", NOTE, ""]
        lines += ["| what | tried | survived | lost | silent |", "|---|--:|--:|--:|--:|"]
        for part, title in PARTS.items():
            counted = self.of(part)
            sums = {o: sum(one[o] for one in counted.values()) for o in OUTCOMES}
            lines.append(_row(f"**{title}**", sums))
            if part != "calls":
                lines += [_row(name, counted[name]) for name in sorted(counted)]
        lines += ["", f"The calls are of {len(self.of('calls'))} public functions and forms.", ""]
        for part in PARTS:
            for name, one in self.of(part).items():
                lines += [f"- {part}, {name}: {note}" for note in one["notes"]]
        return "\n".join(lines).rstrip() + "\n"


def _row(name: str, counts: dict) -> str:
    return f"| {name} | " + " | ".join(f"{counts[o]:,}" for o in OUTCOMES) + " |"
