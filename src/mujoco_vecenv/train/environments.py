"""What a policy acts on: the Microduck, or any other task, and how its actions get there.

Both are stepped by the same calls. What differs between them is decided here and nowhere else in
training: how they are made, what a file says of them, and what an action of -1 or 1 means.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mujoco_vecenv.microduck.config import MicroduckConfig
from mujoco_vecenv.microduck.episodes import config_from_plain, plain_config
from mujoco_vecenv.microduck.layout import ACTIONS
from mujoco_vecenv.tasks import MICRODUCK, RESERVED
from mujoco_vecenv.vector.task_vec_env import TaskVecEnv
from mujoco_vecenv.vector.vec_env import VecEnv


@dataclass(frozen=True)
class TaskConfig:
    """The environments of a task other than the Microduck's.

    Attributes:
        task: what `mujoco_vecenv.tasks.make_task` takes: a name, the path of a Python file as it
            was given, or a module.
        options: the task's own, as JSON's values: tuples become lists, in the first run as in a
            resumed one.

    Raises:
        TypeError: the task is no text, or an option is not one of JSON's values.
    """

    task: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.task, str):
            raise TypeError(f"task must be a name, a file or a module, got {self.task!r}")
        options = {}
        for name, value in self.options.items():
            try:
                options[name] = json.loads(json.dumps(value))
            except (TypeError, ValueError) as error:
                raise TypeError(
                    f"task {self.task}: option {name!r} must be a number, a text, None, True, "
                    f"False, or a list of those, got {value!r}"
                ) from error
        object.__setattr__(self, "options", options)


EnvConfig = MicroduckConfig | TaskConfig
"""The environments of a run."""
Envs = VecEnv | TaskVecEnv
"""Environments stepped together."""


def as_given(begin: EnvConfig, given: dict[str, Any]) -> EnvConfig:
    """Return environments with what the command line says of them.

    Raises:
        TypeError, ValueError: it says what they have no use for.
    """
    own = {
        option.name: given[option.name]
        for option in fields(MicroduckConfig)
        if option.name in given
    }
    options = given.get("option", {})
    if isinstance(begin, MicroduckConfig):
        return MicroduckConfig.from_keywords({**vars(begin), **own, **options})
    for name in own:
        raise ValueError(
            f"--{name.replace('_', '-')} is for {MICRODUCK}: what {begin.task} can be told goes "
            "into --option NAME=VALUE"
        )
    return replace(begin, options={**begin.options, **options})


class ActionScale:
    """What takes a policy's actions to an environment: [-1, 1] onto its limits.

    The action passed on is `clip(action * factor + offset, low, high)`, which is the action clipped
    to [-1, 1] and mapped linearly onto the limits, and never beyond them by a rounding. Where one
    of the two limits is infinite, the action is passed on as it is.

    Args:
        low, high: (actions,) the limits.

    Attributes:
        low, high, factor, offset: (actions,) float32.

    Raises:
        ValueError: a lower limit is not below its upper one.
    """

    def __init__(self, low: ArrayLike, high: ArrayLike):
        lows, highs = np.asarray(low, np.float64), np.asarray(high, np.float64)
        for k, (least, most) in enumerate(zip(lows, highs, strict=True)):
            if not least < most:
                raise ValueError(
                    f"action {k} has the limits {least:g} and {most:g}: give its actuator a "
                    "ctrlrange, or the task action_low and action_high"
                )
        limited = np.isfinite(lows) & np.isfinite(highs)
        bottom, top = np.where(limited, lows, -1), np.where(limited, highs, 1)
        self.factor = ((top - bottom) / 2).astype(np.float32)
        self.offset = ((top + bottom) / 2).astype(np.float32)
        self.low = np.where(limited, lows, -np.inf).astype(np.float32)
        self.high = np.where(limited, highs, np.inf).astype(np.float32)

    def __call__(self, actions: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return (n, actions) float32 to pass to the environments."""
        scaled: NDArray[np.float32] = actions * self.factor + self.offset
        return np.clip(scaled, self.low, self.high, out=scaled)


def make_envs(
    config: EnvConfig,
    n: int,
    seed: int = 0,
    backend: str = "batch",
    threads: int | None = None,
) -> Envs:
    """Return n environments, environment i seeded with `seed + i`.

    Args:
        config: which.
        n: how many.
        seed: seed of environment 0.
        backend: what they run on.
        threads: threads of the batch backend, see VecEnv.

    Raises:
        TypeError, ValueError: there is no such task, or an option is unknown or unusable.
    """
    if isinstance(config, MicroduckConfig):
        return VecEnv(n, seed, backend=backend, threads=threads, **vars(config))
    if config.task.endswith(".py") and not Path(config.task).is_file():
        raise ValueError(
            f"there is no file {Path(config.task).resolve()}, which is task {config.task!r} seen "
            "from this folder: say with --task where it lies"
        )
    for name in config.options:
        if name in RESERVED:
            raise TypeError(f"task {config.task}: {name!r} is no option of a task")
    return TaskVecEnv(config.task, n, seed, backend=backend, threads=threads, **config.options)


def action_size(envs: Envs) -> int:
    """Return how many numbers an action has."""
    return ACTIONS if isinstance(envs, VecEnv) else len(envs.low)


def action_scale(envs: Envs) -> ActionScale | None:
    """Return what a policy's actions pass on their way to the environments.

    None for the Microduck: it clips actions to [-1, 1] itself and scales them to its servos.

    Raises:
        ValueError: the task's limits leave no room for an action.
    """
    if isinstance(envs, VecEnv):
        return None
    try:
        return ActionScale(envs.low, envs.high)
    except ValueError as error:
        raise ValueError(f"task {envs.task.name}: {error}") from error


def task_name(config: EnvConfig) -> str:
    """Return what --task calls it."""
    return MICRODUCK if isinstance(config, MicroduckConfig) else config.task


def describe(config: EnvConfig) -> str:
    """Return the environments in a few words."""
    if isinstance(config, MicroduckConfig):
        return f"{config.variant}, reward {config.reward}{', DR' if config.dr else ''}"
    return ", ".join([config.task, *(f"{name}={v}" for name, v in config.options.items())])


def plain_environments(config: EnvConfig) -> dict[str, Any]:
    """Return what a header says of them, as JSON's values: `config`, or `task` and `options`."""
    if isinstance(config, MicroduckConfig):
        return {"config": plain_config(config)}
    return {"task": config.task, "options": dict(config.options)}


def environments_from_plain(header: Mapping[str, Any]) -> EnvConfig:
    """Return the environments of a header.

    Raises:
        KeyError, TypeError, ValueError: `plain_environments` did not write it.
    """
    if "task" in header:
        return TaskConfig(header["task"], header["options"])
    return config_from_plain(header["config"])


def found_at(config: EnvConfig, task: str) -> EnvConfig:
    """Return the same environments, their task's file looked for elsewhere.

    Args:
        config: the environments.
        task: their own name, or another path to a file of the same name.

    Raises:
        ValueError: that is another task.
    """
    own = task_name(config)
    if isinstance(config, TaskConfig) and own.endswith(".py"):
        if Path(task).name == Path(own).name:
            return replace(config, task=task)
    elif task == own:
        return config
    raise ValueError(f"--task {task} is another task: this was trained on {own}")
