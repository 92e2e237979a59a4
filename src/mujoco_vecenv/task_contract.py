"""The contract for tasks: the batch engine against the references, through Gymnasium's interface.

Both are vector environments of Gymnasium, `TaskVectorEnv` and `SyncVectorEnv` over single
environments, and everything they return is compared: observations, rewards, ends, infos with their
masks, and the last observations and infos of episodes that ended.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray

from mujoco_vecenv.contract import Report, Tally, compare_observations, note, same_bits
from mujoco_vecenv.tasks import make_task, task_module
from mujoco_vecenv.vector.gymnasium_env import TaskVectorEnv, make_single

ENVIRONMENTS: Final = 4
EPISODES: Final = 20
"""Episodes compared per task, at least."""
OBSERVATIONS: Final = 5000
"""Observations compared per task, at least."""
EPISODE_STEPS: Final = 1000
"""Control steps after which episodes are truncated that the task itself never does."""
BEYOND: Final = 1.2
"""Actions are uniform in the announced limits times this, so that clipping is covered."""


def cases_of(task: str) -> list[dict[str, Any]]:
    """Return the options of each case: the defaults, then what the task's module names in CASES."""
    return [{}, *getattr(task_module(task), "CASES", ())]


def run_task_contract(
    tasks: Sequence[str],
    advance: Callable[[float], None] = lambda share: None,
    episodes: int = EPISODES,
    observations: int = OBSERVATIONS,
    episode_steps: int | None = None,
    options: dict[str, Any] | None = None,
) -> Report:
    """Compare tasks on the batch engine with their references.

    Args:
        tasks: what `mujoco_vecenv.tasks.make_task` takes.
        advance: told what share of a task has been compared since the last call.
        episodes: whole episodes per task, at least.
        observations: observations per task, at least.
        episode_steps: control steps after which episodes are truncated; None for each task's own.
        options: of the tasks, to compare with float32 and with float64 actions; None compares the
            cases of each task.

    Returns:
        The report, with a tally per task and case.
    """
    cases = {}
    for task in tasks:  # all of them made before any is compared: one may refuse its options
        given = cases_of(task) if options is None else [options]
        limits = [
            episode_steps or make_task(task, **case).episode_steps or EPISODE_STEPS
            for case in given
        ]
        times = 2 if len(given) == 1 else 1  # for either dtype of actions
        cases[task] = times * list(zip(given, limits, strict=True))
    report = Report()
    for task, limited in cases.items():
        least = math.ceil(episodes / len(limited)), math.ceil(observations / len(limited))
        for number, (case, limit) in enumerate(limited):
            dtype = np.dtype(np.float64 if number % 2 else np.float32)
            tally = Tally()
            reference = SyncVectorEnv(
                [_single(task, case, limit)] * ENVIRONMENTS,
                autoreset_mode=AutoresetMode.SAME_STEP,
            )
            candidate = TaskVectorEnv(
                task,
                ENVIRONMENTS,
                autoreset_mode=AutoresetMode.SAME_STEP,
                max_episode_steps=limit,
                **case,
            )
            done = 0.0
            for share in _compare(reference, candidate, 100 * number, dtype, least, tally):
                advance((share - done) / len(limited))
                done = share
            reference.close()
            candidate.close()
            report.cases.setdefault(_case_name(task, case), Tally()).add(tally)
    return report


def _single(task: str, options: Mapping[str, Any], limit: int) -> Callable[[], Any]:
    # Gymnasium's own environments leave their time limit to a wrapper.
    return lambda: TimeLimit(make_single(task, **options), limit)


def _case_name(task: str, options: Mapping[str, Any]) -> str:
    if not options:
        return task
    said = [f"{name}={value!r}" for name, value in options.items()]
    return f"{task}, {', '.join(said) if len(said) < 3 else f'{len(said)} options'}"


def _compare(
    reference: VectorEnv[Any, Any, Any],
    candidate: VectorEnv[Any, Any, Any],
    seed: int,
    dtype: np.dtype[Any],
    least: tuple[int, int],
    tally: Tally,
) -> Any:
    """Fill the tally, and yield the share that is done."""
    right, other = reference.reset(seed=seed), candidate.reset(seed=seed)
    compare_observations(tally, "at the first reset", right[0], other[0])
    _compare_infos(tally, "at the first reset", right[1], other[1])
    rng = np.random.default_rng(seed)
    space: Any = reference.single_action_space
    step = 0
    while tally.episodes < least[0] or tally.observations < least[1]:
        shape = (reference.num_envs, *space.shape)
        actions = rng.uniform(BEYOND * space.low, BEYOND * space.high, shape).astype(dtype)
        ours, theirs = reference.step(actions), candidate.step(actions)
        place = f"at step {step}"
        compare_observations(tally, place, ours[0], theirs[0])
        names = ("reward", "terminated", "truncated")
        for name, a, b in zip(names, ours[1:4], theirs[1:4], strict=True):
            different = [i for i in range(len(a)) if not same_bits(a[i], b[i])]
            tally.reward_mismatches += len(different)
            note(tally, different, f"{name} of environment {{}} {place}")
        _compare_infos(tally, place, ours[4], theirs[4])
        tally.episodes += int(np.count_nonzero(ours[2] | ours[3]))
        step += 1
        yield min(1.0, tally.episodes / least[0], tally.observations / least[1])
    yield 1.0


def _compare_infos(tally: Tally, place: str, right: Mapping[str, Any], other: Any) -> None:
    for key in {**right, **other}:
        a, b = right.get(key), other.get(key)
        if key == "final_obs" and isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
            ended = [i for i in range(len(a)) if a[i] is not None and b[i] is not None]
            if ended and len(ended) == np.count_nonzero([x is not None for x in (*a, *b)]) / 2:
                at = f"at its end, {place}"
                compare_observations(tally, at, _stack(a, ended), _stack(b, ended))
                continue
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            _compare_infos(tally, f"in {key} {place}", a, b)
        elif not same_bits(a, b):
            tally.info_mismatches += 1
            note(tally, [key], f"info {{}} {place}")


def _stack(observations: NDArray[Any], ids: list[int]) -> NDArray[Any]:
    return np.stack([observations[i] for i in ids])
