"""A training run's folder: its log, its checkpoints, and what they say.

It holds

- `log.jsonl`: a line of JSON per update; everything that depends on the clock is under `time`;
- `checkpoint.npz`: all that decides how the run goes on, and `checkpoint.previous.npz`, the one
  before;
- `policy.npz`: the policy as of the last checkpoint, or the one that recovers, see Policy;
- `curve.png`: the log as a plot;
- `recover.jsonl`: of one that recovers, a line of JSON per iteration and round, and `recover.png`,
  that as a plot.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import mujoco
import numpy as np

from mujoco_vecenv import archive
from mujoco_vecenv.checks import check_integer
from mujoco_vecenv.train.config import PPOConfig, RecoverConfig
from mujoco_vecenv.train.environments import (
    EnvConfig,
    environments_from_plain,
    found_at,
    plain_environments,
)
from mujoco_vecenv.train.policy import FILE

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

CHECKPOINT: Final = "checkpoint.npz"
PREVIOUS: Final = "checkpoint.previous.npz"
LOG: Final = "log.jsonl"
_NEXT: Final = "checkpoint.next.npz"  # whole, but not renamed yet
CURVE: Final = "curve.png"
RECOVERY: Final = "recover.jsonl"
RECOVERY_PLOT: Final = "recover.png"

_FORMAT: Final = "mujoco-vecenv checkpoint"
_VERSION: Final = 1
# What a run cannot change on its way.
_FIXED: Final = ("n", "steps", "hidden", "initial_log_std", "final_log_std")

Line = dict[str, Any]
"""A line of the log."""


@dataclass(frozen=True)
class RunConfig:
    """What decides a policy to the last bit, on one machine.

    Attributes:
        ppo: the algorithm.
        env: the environments.
        seed: of everything that is drawn, 0 to 2**32 - 1.
        recover: what follows once PPO has done its steps, see recover.recover; None for nothing.
    """

    ppo: PPOConfig
    env: EnvConfig
    seed: int = 0
    recover: RecoverConfig | None = None

    def __post_init__(self) -> None:
        check_integer("seed", self.seed, 0, 2**32 - 1)

    def plain(self) -> dict[str, Any]:
        """Return it as JSON's values."""
        plain = {"ppo": asdict(self.ppo), **plain_environments(self.env), "seed": self.seed}
        return plain if self.recover is None else plain | {"recover": asdict(self.recover)}

    def changed(self, changes: Mapping[str, Any]) -> "RunConfig":
        """Return it with some of PPO's values changed, as a resumed run may.

        Raises:
            ValueError: a value that a run cannot change on its way, or that does not fit.
        """
        for name in _FIXED:
            old = getattr(self.ppo, name)
            if changes.get(name, old) != old:
                raise ValueError(f"a resumed run keeps {name}={old}: begin a new one to change it")
        return replace(self, ppo=replace(self.ppo, **changes))


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint as read from its file.

    Attributes:
        path: the file.
        config: of the run.
        arrays: see PPO.state_arrays, and the run's counters.
        log: the lines of the log up to it.
    """

    path: Path
    config: RunConfig
    arrays: archive.Arrays
    log: list[str]

    def found_at(self, task: str) -> "Checkpoint":
        """Return it with its task's file looked for elsewhere, see environments.found_at."""
        config = replace(self.config, env=found_at(self.config.env, task))
        return replace(self, config=config)


@contextmanager
def prepared(folder: Path, checkpoint: Checkpoint | None) -> Iterator[None]:
    """Make a run's folder and its log, which holds what came before the checkpoint.

    While the context lasts, no other process can train in the folder.

    Raises:
        FileExistsError: the folder holds another run, or another process trains in it.
    """
    own = checkpoint is not None and checkpoint.path.parent.resolve() == folder.resolve()
    if not own:
        refuse_used(folder)
    with locked(folder):
        part = folder / (LOG + ".part")
        with open(part, "w") as log:
            log.writelines(checkpoint.log if checkpoint else [])
            log.flush()
            os.fsync(log.fileno())
        part.replace(folder / LOG)
        yield


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make a folder; while the context lasts, no other process can train in it.

    Raises:
        FileExistsError: another process trains in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        if fcntl is not None:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise FileExistsError(f"another process is training in {folder}") from error
        yield


def refuse_used(folder: Path) -> None:
    """Refuse a folder that holds a run, or a policy.

    Raises:
        FileExistsError: it does.
    """
    log = folder / LOG
    if (log.exists() and log.stat().st_size) or any(
        (folder / name).exists() for name in (CHECKPOINT, _NEXT, PREVIOUS)
    ):
        raise FileExistsError(f"{folder} holds a run already: resume it, or choose another tag")
    if (folder / FILE).exists():
        raise FileExistsError(f"{folder} holds a policy already: choose another tag")


def write_line(folder: Path, line: Line) -> None:
    """Append a line to the log."""
    with open(folder / LOG, "a") as log:
        log.write(json.dumps(line) + "\n")


def write_checkpoint(folder: Path, config: RunConfig, arrays: Mapping[str, Any]) -> None:
    """Write a checkpoint. The one that was there is kept as the previous one.

    Whenever this is interrupted, the folder holds a whole checkpoint and the log up to it.
    """
    with open(folder / LOG, "a") as log:
        os.fsync(log.fileno())
    newest, following = folder / CHECKPOINT, folder / _NEXT
    header = {**config.plain(), "mujoco": mujoco.__version__}
    archive.save(following, _FORMAT, _VERSION, header, arrays)
    if newest.exists():
        newest.replace(folder / PREVIOUS)
    following.replace(newest)


def read_checkpoint(path: Path, tell: Callable[[str], object] = print) -> Checkpoint:
    """Read a checkpoint.

    Args:
        path: the file, or a run's folder: its newest checkpoint, or if that one is missing or
            damaged the one before.
        tell: told when it has to be another than the newest.

    Raises:
        OSError: there is none.
        ValueError: it is damaged, foreign, of another version of MuJoCo, or the log beside it is
            not that of its run.
    """
    if not path.is_dir():
        return _read(path)
    try:
        return _read(path / CHECKPOINT)
    except (OSError, ValueError) as error:
        for other in (path / _NEXT, path / PREVIOUS):
            try:
                checkpoint = _read(other)
            except (OSError, ValueError):
                continue
            tell(f"{error}; going on from {other}")
            return checkpoint
        raise


def _read(path: Path) -> Checkpoint:
    header, arrays = archive.load(path, _FORMAT, _VERSION)
    try:
        if header["mujoco"] != mujoco.__version__:
            raise ValueError(f"its MuJoCo is {header['mujoco']}, this is {mujoco.__version__}")
        config = _config(header)
        updates = check_integer("updates", arrays["updates"][()], 0)
        check_integer("episodes", arrays["episodes"][()], 0)
        if arrays["recent_returns"].dtype != np.float64 or arrays["recent_returns"].ndim != 1:
            raise ValueError("'recent_returns' is no list of numbers")
    except Exception as error:  # whatever a foreign header leads to
        raise ValueError(f"{path} does not fit or is damaged: {error!r}") from error
    return Checkpoint(path, config, arrays, _log_until(path.parent / LOG, updates))


def _log_until(path: Path, updates: int) -> list[str]:
    """Return the lines of a log up to an update, none where there is no log.

    Raises:
        ValueError: it does not lead up to that update.
    """
    if not path.exists():
        return []
    lines = path.read_text(errors="replace").splitlines(keepends=True)
    found = []
    for text in lines:
        try:
            number = json.loads(text)["update"]
        except (ValueError, KeyError, TypeError):
            break
        if number > updates:
            break
        found.append((number, text))
    numbers = [number for number, _ in found]
    leads = numbers == list(range(updates - len(found) + 1, updates + 1))
    if not leads or (lines and updates and not found):
        raise ValueError(
            f"{path} does not lead up to update {updates}, where the checkpoint is: restore it, "
            "or copy the checkpoint elsewhere and --resume that"
        )
    return [text for _, text in found]


def read_config(folder: Path) -> RunConfig:
    """Return what a run trains, whatever version of MuJoCo it ran on.

    Raises:
        OSError: there is no checkpoint.
        ValueError: it is damaged or foreign.
    """
    path = folder / CHECKPOINT
    header, _ = archive.load(path, _FORMAT, _VERSION)
    try:
        return _config(header)
    except Exception as error:  # whatever a foreign header leads to
        raise ValueError(f"{path} does not fit or is damaged: {error!r}") from error


def _config(header: Mapping[str, Any]) -> RunConfig:
    recover = header.get("recover")
    return RunConfig(
        PPOConfig(**header["ppo"]),
        environments_from_plain(header),
        header["seed"],
        None if recover is None else RecoverConfig(**recover),
    )


def read_log(folder: Path) -> list[Line]:
    """Return a run's log.

    Raises:
        OSError: there is none.
        ValueError: it is damaged.
    """
    lines = []
    texts = (folder / LOG).read_text(errors="replace").splitlines()
    for number, text in enumerate(texts, 1):
        try:
            line = json.loads(text)
            for name in ("update", "steps", "return", "clip_fraction", "kl", "std"):
                line[name]
            line["time"]["rate"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{folder / LOG}, line {number}, is damaged: {error!r}") from error
        lines.append(line)
    return lines
