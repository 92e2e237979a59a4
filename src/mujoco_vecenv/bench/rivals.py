"""What is timed of a task beside others: all that a user of Gymnasium could step in its place.

They have Gymnasium's interface and its autoreset mode NEXT_STEP, in which the step after the end of
an episode begins the next one and moves nothing. For all of them that counts as a step.
"""

import ctypes
import importlib
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import gymnasium
import mujoco

from mujoco_vecenv.bench import task_windows
from mujoco_vecenv.bench.task_windows import EngineLoop, random_actions, vector_window
from mujoco_vecenv.bench.windows import Window
from mujoco_vecenv.vector.gymnasium_env import NAMESPACE


def contestants(
    task: str, n: int, threads: int, workers: int, envpool: bool, stack: ExitStack
) -> dict[str, Window]:
    """Return contestant to its window: ours, sync, async, batch, engine, and envpool if asked for.

    Args:
        task: a name in `mujoco_vecenv.tasks.TASKS`.
        n: environments.
        threads: threads of ours, of mujoco.batch and of EnvPool.
        workers: environments of AsyncVectorEnv, a process each.
        envpool: whether EnvPool takes part, which must have the task.
        stack: closes what must be closed.
    """
    ours_id = f"{NAMESPACE}/{task}"
    plain_id = task if task in gymnasium.registry else ours_id
    with _quietly():
        # The processes first: they are forked from this one, which should have no threads yet.
        processes = gymnasium.make_vec(plain_id, workers, "async")
        stack.callback(processes.close, terminate=True)
        sync = gymnasium.make_vec(plain_id, n, "sync")
        stack.callback(sync.close)
    ours: Any = gymnasium.make_vec(ours_id, n, threads=threads)
    stack.callback(ours.close)
    engine = task_windows.engine_of(ours)
    actions = random_actions(
        ours.task, engine.low, engine.high, task_windows.STEPS, max(n, workers)
    )
    windows = {
        name: vector_window(partial(envs.reset, seed=0), envs.step, actions[:, : envs.num_envs])
        for name, envs in (("ours", ours), ("sync", sync), ("async", processes))
    }
    cues = task_windows.record(engine, windows["ours"])
    windows["batch"] = EngineLoop(engine, threads, cues, ours.task.compiled_model)
    windows["engine"] = EngineLoop(engine, threads, cues)
    if envpool:
        pool = importlib.import_module("envpool")
        # It is seeded once, and goes on from there: its reset() takes no seed.
        envs = pool.make_gymnasium(task, num_envs=n, batch_size=n, num_threads=threads, seed=0)
        stack.callback(envs.close)
        windows["envpool"] = vector_window(envs.reset, envs.step, actions[:, :n])
    return windows


def describe_envpool(tasks: Sequence[str], n: int, threads: int) -> dict[str, Any] | None:
    """Return what a reader must know of EnvPool and which tasks it has; None if not installed."""
    try:
        pool = importlib.import_module("envpool")
    except ImportError:
        return None
    known = set(pool.list_all_envs())
    return {
        "version": pool.__version__,
        "mujoco": _mujoco_of_envpool(),
        "num_threads": threads,
        "batch_size": n,
        "tasks": [task for task in tasks if task in known],
    }


def _mujoco_of_envpool() -> str:
    """Return the version of MuJoCo that EnvPool is linked with."""
    try:
        module = importlib.import_module("envpool.mujoco.mujoco_gym_envpool")
        version = ctypes.CDLL(str(module.__file__)).mj_versionString
    except (ImportError, OSError, AttributeError):
        return "unknown"
    version.restype = ctypes.c_char_p
    return str(version().decode())


@contextmanager
def _quietly() -> Iterator[None]:
    """Leave Ctrl-C to this process alone, not to those that it starts, and say warnings once.

    The model of each environment would give the same ones, which ours has given.
    """
    warn = mujoco.get_mju_user_warning()
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(warn)
        signal.signal(signal.SIGINT, interrupt)
