"""One run of a benchmark, as the JSON file that is left of it.

docs/bench.md documents the file's schema.
"""

import json
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

from mujoco_vecenv import machine
from mujoco_vecenv.bench.box import Box
from mujoco_vecenv.bench.verdicts import MEANINGFUL_SECONDS
from mujoco_vecenv.bench.windows import Window

FORMAT: Final = "mujoco-vecenv bench"
VERSION: Final = 1
_SAMPLE_EVERY: Final = 10.0  # seconds between looks at the machine

Record = dict[str, Any]


class Progress(Protocol):
    """Where a run reports how far it is."""

    def expect(self, windows: int) -> None:
        """Say how many windows there will be."""

    def advance(self) -> None:
        """Count a window as done."""


class Run:
    """A benchmark while it runs: times windows, watches the machine, keeps the record.

    Args:
        kind: which benchmark.
        settings: its settings.
        progress: told of the windows to come and of each that is done.
        strict: refuse to start on a busy machine.

    Raises:
        BusyMachineError: strict, and another process is busy.
    """

    def __init__(
        self, kind: str, settings: dict[str, Any], progress: Progress, strict: bool = False
    ):
        self.progress = progress
        self._box = Box()
        self._box.sample(wait=1.0)
        if strict:
            self._box.refuse_if_busy()
        self._sampled = time.monotonic()
        self.record: Record = {
            "format": FORMAT,
            "version": VERSION,
            "kind": kind,
            "command": machine.command(),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "complete": False,
            "settings": settings,
            "machine": machine.describe(),
            "box": {},
            "rows": [],
        }
        self.rows: list[dict[str, Any]] = self.record["rows"]

    def timed(self, window: Window, seconds: float) -> dict[str, float]:
        """Run a contestant for at least some seconds, in whole episodes.

        Returns:
            The seconds it took and the env_steps it did.
        """
        steps, start = 0, time.perf_counter()
        while True:
            steps += window()
            elapsed = time.perf_counter() - start
            if elapsed >= seconds:
                break
        self.progress.advance()
        if time.monotonic() - self._sampled > _SAMPLE_EVERY:
            self._box.sample()
            self._sampled = time.monotonic()
        return {"seconds": elapsed, "env_steps": steps}

    def take_turns(
        self, row: dict[str, Any], contestants: dict[str, Window], rounds: int, seconds: float
    ) -> None:
        """Let contestants run a window each, round by round, after a round that is not counted.

        Args:
            row: gains `windows`, contestant to its list of windows.
            contestants: name to window.
            rounds: counted rounds.
            seconds: the least length of a window.
        """
        windows: dict[str, list[dict[str, float]]] = {name: [] for name in contestants}
        row["windows"] = windows
        self.rows.append(row)
        for window in contestants.values():
            self.timed(window, 0.0)
        for round_ in range(rounds):
            # Every other round in reverse: none always runs on the heels of the same other.
            for name in list(contestants)[:: -1 if round_ % 2 else 1]:
                windows[name].append(self.timed(contestants[name], seconds))

    def finish(self, complete: bool) -> Record:
        """Close the record.

        Args:
            complete: whether the run came to its end.
        """
        self._box.sample()
        self.record["complete"] = complete
        self.record["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
        self.record["box"] = asdict(self._box)
        self.record["warnings"] = self._box.warnings + _own_warnings(self.record)
        return self.record


def _own_warnings(record: Record) -> list[str]:
    warnings = []
    if not record["complete"]:
        warnings.append("the run was interrupted: these are the windows it had done")
    lengths = [window["seconds"] for window in all_windows(record)]
    if lengths and min(lengths) < MEANINGFUL_SECONDS:
        warnings.append(
            f"windows as short as {min(lengths):.2f} s: too short to mean anything, use --seconds"
        )
    return warnings


def all_windows(record: Record) -> list[dict[str, float]]:
    """Return every timed window of a record."""
    windows = list(record.get("reference", []))
    for row in record["rows"]:
        if isinstance(row.get("windows"), dict):
            windows += [w for contestant in row["windows"].values() for w in contestant]
    return windows


def rates(windows: list[dict[str, float]]) -> list[float]:
    """Return the environment steps per second of each window."""
    return [window["env_steps"] / window["seconds"] for window in windows]


def write(record: Record, path: Path) -> None:
    """Write a record, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(record, indent=1) + "\n")
    part.replace(path)


def read(path: Path) -> Record:
    """Read a record.

    Raises:
        ValueError: the file is no record of a benchmark, or of another version.
    """
    try:
        record: Record = json.loads(path.read_text())
        kind, version = record["format"], record["version"]
        if version == VERSION:
            for field in ("kind", "command", "started", "settings", "machine", "rows", "warnings"):
                record[field]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no record of a benchmark: {error!r}") from error
    if kind != FORMAT or version != VERSION:
        raise ValueError(
            f"{path} is {kind!r} version {version}; this reads {FORMAT!r} version {VERSION}"
        )
    return record
