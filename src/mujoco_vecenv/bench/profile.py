"""Where one step of the batch backend goes: clocks inside it."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from numpy.typing import NDArray

from mujoco_vecenv.bench import task_windows
from mujoco_vecenv.bench.subjects import Envs, Subject, make_envs, random_actions
from mujoco_vecenv.microduck.config import MicroduckConfig
from mujoco_vecenv.vector.task_vec_env import TaskVecEnv
from mujoco_vecenv.vector.vec_env import VecEnv

Owned = tuple[Any, str]
"""An object, and the name of its function that is meant."""

_FEW: Final = 64
"""Environments on which it is measured how often episodes begin."""


def profile_step(n: int, threads: int, subject: Subject, steps: int) -> dict[str, float]:
    """Return where one step goes, in µs.

    One pass has a clock around the physics alone. A second one over the same steps has clocks
    around the kernels as well, which cost a little themselves: it says how what is beyond physics
    is shared between kernels and the rest.

    Returns:
        physics: in mujoco.batch; kernels: in the compiled task; python: the rest; draws: beginning
        new episodes, averaged over all steps; step: all of that; warm: a step with the physics left
        out, which finds everything in the caches; waited: the same, but for a loop in the place of
        physics that touches no memory and takes as long, while others on the machine empty the
        caches that it shares with them. Medians over steps, but for draws.
    """
    envs = make_envs(subject, n, threads=threads)
    engine = task_windows.engine_of(envs)
    begin: Owned = (envs._envs, "_begin") if isinstance(envs, VecEnv) else (engine, "begin")
    actions = random_actions(envs, steps)
    draws = _time_draws(envs, begin, subject)
    envs.reset(seed=0)
    physics: Owned = (engine.sims, "step")
    parts, beyond = _time_inside(envs, actions, begin, {"physics": [physics]})
    envs.reset(seed=0)
    both = {"physics": [physics], "kernels": [(engine, "_control"), (engine, "_finish")]}
    closer, rest = _time_inside(envs, actions, begin, both)
    parts["kernels"] = beyond * closer["kernels"] / (closer["kernels"] + rest)
    parts["python"] = beyond - parts["kernels"]
    parts["draws"] = draws
    parts["step"] = parts["physics"] + beyond + draws
    for name, instead in (("warm", _wait(0.0)), ("waited", _wait(parts["physics"]))):
        engine.sims.step = instead  # type: ignore[method-assign]
        _, parts[name] = _time_inside(envs, actions, begin, {"physics": [physics]})
    return parts


def _wait(duration: float) -> Callable[..., None]:
    """Return what keeps its thread busy for a duration in µs, and touches no memory."""
    clock = time.perf_counter

    def wait(substeps: int, ids: Any = None) -> None:
        end = clock() + 1e-6 * duration
        while clock() < end:
            pass

    return wait


def _time_draws(envs: Envs, begin: Owned, subject: Subject) -> float:
    """Return the µs that a step spends on beginning new episodes, on the average.

    Where a task's episodes end shows only after more steps than many environments take here: it is
    measured on a few of them, and where none ends there, once in the longest episode.
    """
    with _clocks({"begin": [begin]}) as spent:
        envs.reset(seed=0)
    longest: float | None
    if isinstance(subject, MicroduckConfig):
        longest = subject.episode_steps
    else:
        few = TaskVecEnv(subject, min(envs.n, _FEW), threads=min(envs.threads, _FEW))
        actions = random_actions(few, task_windows.STEPS)
        with _clocks({"begin": [(task_windows.engine_of(few), "begin")]}) as few_spent:
            for action in actions:
                few.step(action)
        if few_spent["begin"]:
            return 1e6 * few_spent["begin"] / len(actions) * envs.n / few.n
        longest = few.task.episode_steps
    return 1e6 * spent["begin"] / longest if longest else 0.0


@contextmanager
def _clocks(parts: Mapping[str, Sequence[Owned]]) -> Iterator[dict[str, float]]:
    """Put clocks around functions.

    Args:
        parts: part to the functions whose time it is.

    Yields:
        Part to the seconds that it took so far.
    """
    clock = time.perf_counter
    spent = dict.fromkeys(parts, 0.0)

    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any) -> Any:
            start = clock()
            result = function(*arguments)
            spent[part] += clock() - start
            return result

        return wrapper

    with ExitStack() as stack:
        for part, functions in parts.items():
            for owner, name in functions:
                original = getattr(owner, name)
                stack.callback(setattr, owner, name, original)
                setattr(owner, name, timed(part, original))
        yield spent


def _time_inside(
    envs: Envs, actions: NDArray[Any], begin: Owned, parts: dict[str, list[Owned]]
) -> tuple[dict[str, float], float]:
    """Return the median µs of parts of a step, and of what is left of it.

    Args:
        envs: the environments.
        actions: (steps, n, actions).
        begin: what begins new episodes, which is left out.
        parts: part to the functions whose time it is.
    """
    clock = time.perf_counter
    samples: dict[str, list[float]] = {part: [] for part in parts}
    left = []
    with _clocks({"begin": [begin], **parts}) as spent:
        for action in actions:
            spent.update(dict.fromkeys(spent, 0.0))
            start = clock()
            envs.step(action)
            left.append(clock() - start - sum(spent.values()))
            for part, values in samples.items():
                values.append(spent[part])
    medians = {part: 1e6 * statistics.median(values) for part, values in samples.items()}
    return medians, 1e6 * statistics.median(left)
