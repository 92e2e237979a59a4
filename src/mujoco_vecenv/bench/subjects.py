"""What is measured: the Microduck, or any other task; here each is timed in its own way."""

from typing import Any

from numpy.typing import NDArray

from mujoco_vecenv.bench import task_windows, windows
from mujoco_vecenv.bench.windows import Window
from mujoco_vecenv.microduck.config import MicroduckConfig
from mujoco_vecenv.vector.task_vec_env import TaskVecEnv
from mujoco_vecenv.vector.vec_env import VecEnv

Subject = MicroduckConfig | str
"""The Microduck's configuration, or what `mujoco_vecenv.tasks.make_task` takes for a task."""
Envs = VecEnv | TaskVecEnv
"""Environments of a subject, stepped together."""


def make_envs(subject: Subject, n: int, **keywords: Any) -> Envs:
    """Return n environments; the keywords are those that VecEnv and TaskVecEnv share."""
    if isinstance(subject, MicroduckConfig):
        return VecEnv(n, **keywords, **vars(subject))
    return TaskVecEnv(subject, n, **keywords)


def mode_window(
    mode: str, n: int, threads: int, subject: Subject, allow_overcommit: bool = False
) -> Window:
    """Return the window of one of MODES; see `windows` and `task_windows`."""
    if isinstance(subject, MicroduckConfig):
        return windows.mode_window(mode, n, threads, subject, allow_overcommit)
    return task_windows.mode_window(mode, n, threads, subject, allow_overcommit)


def episodes_window(envs: Envs) -> Window:
    """Return the window of environments, on whatever backend."""
    if isinstance(envs, VecEnv):
        return windows.env_window(envs, random_actions(envs, envs.config.episode_steps))
    return task_windows.episodes_window(envs)


def random_actions(envs: Envs, steps: int) -> NDArray[Any]:
    """Return (steps, n, actions) random actions for environments, the same at every call."""
    if isinstance(envs, VecEnv):
        return windows.random_actions(steps, envs.n)
    return task_windows.random_actions(envs.task, envs.low, envs.high, steps, envs.n)
