"""A training run's folder: its log, its checkpoints, and what they say.

It holds

- `log.jsonl`: a line of JSON per update; everything that depends on the clock is under `time`;
- `checkpoint.npz`: all that decides how the run goes on, and `checkpoint.previous.npz`, the one
  before;
- `policy.npz`: the policy as of the last checkpoint, see Policy;
- `curve.png`: the log as a plot.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import mujoco

from mujoco_vecenv import archive
from mujoco_vecenv.microduck.config import MicroduckConfig
from mujoco_vecenv.microduck.episodes import config_from_plain, plain_config
from mujoco_vecenv.train.config import PPOConfig

CHECKPOINT: Final = "checkpoint.npz"
PREVIOUS: Final = "checkpoint.previous.npz"
LOG: Final = "log.jsonl"
CURVE: Final = "curve.png"

_FORMAT: Final = "mujoco-vecenv checkpoint"
_VERSION: Final = 1
_FIXED: Final = (
    "n",
    "steps",
    "hidden",
    "initial_log_std",
    "final_log_std",
)  # what a run cannot change on its way

Line = dict[str, Any]
"""A line of the log."""


@dataclass(frozen=True)
class RunConfig:
    """What decides a policy to the last bit, on one machine.

    Attributes:
        ppo: the algorithm.
        env: the environments.
        seed: of everything that is drawn.
    """

    ppo: PPOConfig
    env: MicroduckConfig
    seed: int = 0

    def plain(self) -> dict[str, Any]:
        """Return it as JSON's values."""
        return {"ppo": asdict(self.ppo), "config": plain_config(self.env), "seed": self.seed}

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


def prepare(folder: Path, checkpoint: Checkpoint | None) -> None:
    """Make a run's folder and its log, which holds what came before the checkpoint.

    Raises:
        FileExistsError: the folder holds another run.
    """
    own = checkpoint is not None and checkpoint.path.parent.resolve() == folder.resolve()
    if (folder / LOG).exists() and not own:
        raise FileExistsError(f"{folder} holds a run already: resume it, or choose another tag")
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / (LOG + ".part")
    part.write_text("".join(checkpoint.log) if checkpoint else "")
    part.replace(folder / LOG)


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
    newest, following = folder / CHECKPOINT, folder / "checkpoint.next.npz"
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
        tell: told when it has to be the one before.

    Raises:
        OSError: there is none.
        ValueError: it is damaged, foreign, or of another version of MuJoCo.
    """
    if not path.is_dir():
        return _read(path)
    newest, previous = path / CHECKPOINT, path / PREVIOUS
    try:
        return _read(newest)
    except (OSError, ValueError) as error:
        if not previous.exists():
            raise
        checkpoint = _read(previous)
        tell(f"{error}; going on from {previous}")
        return checkpoint


def _read(path: Path) -> Checkpoint:
    header, arrays = archive.load(path, _FORMAT, _VERSION)
    try:
        if header["mujoco"] != mujoco.__version__:
            raise ValueError(f"its MuJoCo is {header['mujoco']}, this is {mujoco.__version__}")
        config = RunConfig(
            PPOConfig(**header["ppo"]), config_from_plain(header["config"]), header["seed"]
        )
        for name in ("updates", "episodes", "recent_returns"):
            arrays[name]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} does not fit or is damaged: {error}") from error
    log = path.parent / LOG
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    return Checkpoint(path, config, arrays, lines[: int(arrays["updates"])])


def read_log(folder: Path) -> list[Line]:
    """Return a run's log.

    Raises:
        OSError: there is none.
        ValueError: it is damaged.
    """
    lines = []
    for number, text in enumerate((folder / LOG).read_text().splitlines(), 1):
        try:
            line = json.loads(text)
            for name in ("update", "steps", "return", "time"):
                line[name]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{folder / LOG}, line {number}, is damaged: {error!r}") from error
        lines.append(line)
    return lines
