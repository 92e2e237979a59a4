"""How well actions do: the same episodes for every contestant, measured and put side by side."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from mujoco_vecenv.microduck.config import FALL_HEIGHT, SUBSTEPS, TIMESTEP, MicroduckConfig
from mujoco_vecenv.microduck.layout import ACTIONS
from mujoco_vecenv.microduck.randomization import DRConfig
from mujoco_vecenv.microduck.rewards import REWARDS
from mujoco_vecenv.train.environments import ActionScale, EnvConfig, TaskConfig, make_envs
from mujoco_vecenv.train.policy import Policy
from mujoco_vecenv.vector.task_vec_env import TaskVecEnv
from mujoco_vecenv.vector.vec_env import VecEnv

UPRIGHT: Final = 0.9
"""The trunk counts as upright while the cosine of its tilt is above this."""
RECOVERY_STEPS: Final = 100
"""A robot has 2 s to be upright again after a push."""
LEAST_STEPS: Final = 25
"""A push that the next one follows within 0.5 s is not judged."""
FAST: Final = 0.3
"""A push of this speed or more is told apart from a slower one, m/s."""
SEED_STRIDE: Final = 100_000
"""Episode j of seed s is reset with s * SEED_STRIDE + j."""
UNLIMITED: Final = 1000
"""Steps after which an evaluation cuts off an episode that its task would let go on for ever."""

_Config = TypeVar("_Config", bound=EnvConfig)

Act = Callable[[NDArray[Any]], NDArray[Any]]
"""(n, observations) to the (n, actions) to pass to the environments."""


def hold(obs: NDArray[np.float32]) -> NDArray[Any]:
    """Hold the STAND pose: the servos' own PD control, and no policy."""
    return np.zeros((len(obs), ACTIONS))


def random_actions(seed: int = 0, scale: ActionScale | None = None) -> Act:
    """Return what acts uniformly at random in [-1, 1], which a task's scale takes to its limits."""
    rng = np.random.default_rng(seed)
    if scale is None:
        return lambda obs: rng.uniform(-1, 1, (len(obs), ACTIONS))
    size = len(scale.low)
    return lambda obs: scale(rng.uniform(-1, 1, (len(obs), size)).astype(np.float32))


def contestants(policy: Policy) -> dict[str, Act]:
    """Return a policy, and what it is measured against: holding STAND, or random actions."""
    scale = policy.scale
    return {"policy": policy.actor()} | (
        {"hold STAND": hold} if scale is None else {"random": random_actions(scale=scale)}
    )


@dataclass
class Episodes:
    """What whole episodes did: arrays of (episodes, steps), `terms` one for each reward term.

    Attributes:
        rewards: reward of each step.
        height: trunk height, m.
        upright: cosine of the trunk's tilt.
        pushed: whether a push came before the step.
        velocity: (episodes, steps, 2) what that push added to the trunk's velocity, m/s.
        terms: reward term to its weighted values.
    """

    rewards: NDArray[np.float64]
    height: NDArray[np.float64]
    upright: NDArray[np.float64]
    pushed: NDArray[np.bool_]
    velocity: NDArray[np.float64]
    terms: dict[str, NDArray[np.float64]]

    @property
    def returns(self) -> NDArray[np.float64]:
        """(episodes,) sums of rewards, in the order of the steps."""
        total = np.zeros(len(self.rewards))
        for rewards in self.rewards.T:
            total += rewards
        return total


@dataclass
class TaskEpisodes:
    """What whole episodes of a task other than the Microduck's did.

    Attributes:
        returns: (episodes,) sums of rewards, in the order of the steps.
        lengths: (episodes,) int64, control steps.
        terminated: (episodes,) whether the task ended it, and not a limit of steps.
    """

    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    terminated: NDArray[np.bool_]


def run_episodes(
    act: Act,
    config: MicroduckConfig,
    seed: int,
    episodes: int,
    threads: int | None = None,
    backend: str = "batch",
) -> Episodes:
    """Run whole episodes together, episode j in an environment of seed `seed + j`.

    Args:
        act: chooses the actions.
        config: the environments.
        seed: seed of episode 0.
        episodes: how many.
        threads: see VecEnv.
        backend: see VecEnv.
    """
    shape = (episodes, config.episode_steps)
    with VecEnv(
        episodes, seed, with_terms=True, backend=backend, threads=threads, **vars(config)
    ) as envs:
        obs = envs.reset()
        result = Episodes(
            np.empty(shape), np.empty(shape), np.empty(shape), np.empty(shape, bool),
            np.zeros((*shape, 2)), {name: np.empty(shape) for name in REWARDS[config.reward]},
        )  # fmt: skip
        for i, episode in enumerate(envs.record()):
            result.velocity[i, episode.push_steps] = episode.push_velocity
        for t in range(config.episode_steps):
            obs, result.rewards[:, t], _, infos = envs.step(act(obs))
            for i, info in enumerate(infos):
                result.height[i, t] = info["trunk_height"]
                result.upright[i, t] = info["upright_cos"]
                result.pushed[i, t] = info["pushed"]
                for name, values in result.terms.items():
                    values[i, t] = info["terms"][name]
    return result


def run_task_episodes(
    act: Act,
    config: TaskConfig,
    seed: int,
    episodes: int,
    threads: int | None = None,
    backend: str = "batch",
) -> TaskEpisodes:
    """Run whole episodes together, episode j in an environment of seed `seed + j`.

    Arguments as in `run_episodes`. An episode that the task does not limit is cut off after
    UNLIMITED steps.
    """
    result = TaskEpisodes(
        np.zeros(episodes), np.zeros(episodes, np.int64), np.zeros(episodes, np.bool_)
    )
    running = np.ones(episodes, np.bool_)
    with make_envs(config, episodes, seed, backend, threads) as envs:
        assert isinstance(envs, TaskVecEnv)
        obs = envs.reset()
        for _ in range(envs.task.episode_steps or UNLIMITED):
            # Environments whose first episode is over run on: the others' rows are what counts.
            obs, rewards, done, infos = envs.step(act(obs))
            result.returns[running] += rewards[running]
            result.lengths[running] += 1
            for i in np.flatnonzero(done & running).tolist():
                result.terminated[i] = infos[i]["terminated"]
            running &= ~done
            if not running.any():
                break
    return result


def evaluate(
    act: Act,
    config: EnvConfig,
    episodes: int = 100,
    seeds: Sequence[int] = range(5),
    threads: int | None = None,
    advance: Callable[[int], object] = lambda count: None,
) -> dict[str, Any]:
    """Run episodes of several seeds and measure them.

    Args:
        act: chooses the actions.
        config: the environments.
        episodes: episodes of each seed.
        seeds: the seeds; episode j of seed s is reset with s * SEED_STRIDE + j.
        threads: see VecEnv.
        advance: told of each number of episodes that are done.

    Returns:
        `summary` or `task_summary` of all of them, as JSON's values.
    """
    return measure(act, config, [s * SEED_STRIDE for s in seeds], episodes, threads, advance)


def measure(
    act: Act,
    config: EnvConfig,
    firsts: Sequence[int],
    episodes: int,
    threads: int | None = None,
    advance: Callable[[int], object] = lambda count: None,
) -> dict[str, Any]:
    """Run episodes and measure them, as `evaluate` does; `firsts` are the seeds to count from."""

    def each(run: Callable[..., Any]) -> list[Any]:
        results = []
        for first in firsts:
            results.append(run(act, config, first, episodes, threads))
            advance(episodes)
        return results

    if isinstance(config, TaskConfig):
        return task_summary(each(run_task_episodes))
    return summary(each(run_episodes))


def in_short(result: dict[str, Any]) -> dict[str, float]:
    """Return what a training's log keeps of an evaluation."""
    names = ("upright", "height_median", "length", "terminated")
    return {
        "return": result["return"]["mean"],
        "sd_episodes": result["return"]["sd_episodes"],
        **{name: result[name] for name in names if name in result},
    }


def summary(seeds: Sequence[Episodes]) -> dict[str, Any]:
    """Return the figures of an evaluation, from the episodes of each seed.

    Returns:
        `episodes`: how many; `returns`: of each.
        `return`: mean; sd_seeds, the sample deviation of the seeds' means; sd_episodes, the
            deviation over all episodes; per_seed.
        `survival`: share of control steps with the trunk above 4 cm.
        `upright`: share of control steps with the trunk upright.
        `height_median`: m.
        `pushes`: all; on_fallen, which came when the trunk was not upright; cut_short, which the
            next push followed within 0.5 s; judged, the others; recovered, those of them after
            which the trunk was upright 2 s later, or when the next push came or the episode ended.
        `recovery`: their share; seconds_p50 and seconds_p90 until the trunk stayed upright, 0 where
            it never tilted; directions: `slow forward` and so on, to how many were judged there
            and recovered. Forward, backward and sideways are quarters about the way that STAND
            faces; fast is FAST and above.
        `terms`: reward term to its mean per step.
    """
    height = np.concatenate([episodes.height for episodes in seeds])
    cosine = np.concatenate([episodes.upright for episodes in seeds])
    pushed = np.concatenate([episodes.pushed for episodes in seeds])
    velocity = np.concatenate([episodes.velocity for episodes in seeds])
    pushes, seconds, directions = _recoveries(cosine > UPRIGHT, pushed, velocity)
    return {
        **_return_figures(seeds),
        "survival": float((height > FALL_HEIGHT).mean()),
        "upright": float((cosine > UPRIGHT).mean()),
        "height_median": float(np.median(height)),
        "pushes": pushes,
        "recovery": {
            "share": pushes["recovered"] / pushes["judged"] if pushes["judged"] else None,
            "seconds_p50": float(np.percentile(seconds, 50)) if seconds else None,
            "seconds_p90": float(np.percentile(seconds, 90)) if seconds else None,
            "directions": directions,
        },
        "terms": {
            name: float(np.mean([episodes.terms[name].mean() for episodes in seeds]))
            for name in seeds[0].terms
        },
    }


def task_summary(seeds: Sequence[TaskEpisodes]) -> dict[str, Any]:
    """Return the figures of an evaluation of another task than the Microduck's.

    Returns:
        `episodes`, `returns`, `return`: as in `summary`.
        `length`: mean control steps of an episode; `lengths`: of each.
        `terminated`: share of the episodes that the task ended; `truncated`: of those that a
            limit of steps did. An episode that both ended counts as terminated.
    """
    lengths = np.concatenate([episodes.lengths for episodes in seeds])
    terminated = np.concatenate([episodes.terminated for episodes in seeds])
    return {
        **_return_figures(seeds),
        "length": float(lengths.mean()),
        "lengths": lengths.tolist(),
        "terminated": float(terminated.mean()),
        "truncated": float((~terminated).mean()),
    }


def _return_figures(seeds: Sequence[Episodes] | Sequence[TaskEpisodes]) -> dict[str, Any]:
    per_seed = [float(episodes.returns.mean()) for episodes in seeds]
    returns = np.concatenate([episodes.returns for episodes in seeds])
    return {
        "episodes": len(returns),
        "returns": returns.tolist(),
        "return": {
            "mean": float(returns.mean()),
            "sd_seeds": float(np.std(per_seed, ddof=1)) if len(per_seed) > 1 else None,
            "sd_episodes": float(returns.std()),
            "per_seed": per_seed,
        },
    }


def _recoveries(
    upright: NDArray[np.bool_], pushed: NDArray[np.bool_], velocity: NDArray[np.float64]
) -> tuple[dict[str, int], list[float], dict[str, dict[str, int]]]:
    """Judge each push; return their counts, the seconds of each recovery, counts by direction."""
    counts = dict.fromkeys(("all", "on_fallen", "cut_short", "judged", "recovered"), 0)
    seconds = []
    directions = {
        f"{pace} {way}": {"judged": 0, "recovered": 0}
        for pace in ("slow", "fast")
        for way in ("forward", "backward", "sideways")
    }
    for stands, pushes, velocities in zip(upright, pushed, velocity, strict=True):
        moments = np.flatnonzero(pushes).tolist()
        for moment, following in pairwise([*moments, len(stands)]):
            counts["all"] += 1
            after = stands[moment : min(moment + RECOVERY_STEPS, following)]
            if moment and not stands[moment - 1]:
                counts["on_fallen"] += 1
            elif len(after) < LEAST_STEPS:
                counts["cut_short"] += 1
            else:
                direction = directions[_direction(*velocities[moment])]
                for tally in (counts, direction):
                    tally["judged"] += 1
                    tally["recovered"] += int(after[-1])
                if after[-1]:
                    tilted = np.flatnonzero(~after)
                    steps = int(tilted[-1]) + 1 if len(tilted) else 0
                    seconds.append(steps * SUBSTEPS * TIMESTEP)
    return counts, seconds, directions


def _direction(x: float, y: float) -> str:
    pace = "fast" if math.hypot(x, y) >= FAST else "slow"
    if abs(y) > abs(x):
        return f"{pace} sideways"
    return f"{pace} forward" if x > 0 else f"{pace} backward"


def observations(act: Act, config: EnvConfig, count: int) -> NDArray[np.float32]:
    """Return (count, observations) from four environments in which `act` chooses the actions."""
    with make_envs(config, 4) as envs:
        seen = [envs.reset()]
        for _ in range(-(-count // 4) - 1):
            seen.append(envs.step(act(seen[-1]))[0])
    return np.concatenate(seen)[:count].astype(np.float32, copy=False)


def usual(config: _Config) -> _Config:
    """Return environments with the usual episodes, whatever training had."""
    if isinstance(config, TaskConfig):
        return config
    default = MicroduckConfig()
    return replace(
        config,
        episode_steps=default.episode_steps,
        n_pushes=default.n_pushes,
        push_speed=default.push_speed,
        init_noise=default.init_noise,
    )


def places(config: MicroduckConfig, variants: Sequence[str]) -> dict[str, MicroduckConfig]:
    """Return where to look for a policy's gap: first its own environments.

    Args:
        config: the environments that it was trained on.
        variants: models to try it on, with the randomisation that it was trained with.

    Returns:
        Name to environments: its own; the other variants; its own with the default
        randomisation, or without any if it was trained with some.
    """
    others = [variant for variant in variants if variant != config.variant]
    suffix = "" if config.dr is None else ", DR"
    found = {
        f"{variant}{suffix}": replace(config, variant=variant)
        for variant in (config.variant, *others)
    }
    if config.dr is None:
        found[f"{config.variant}, DR"] = replace(config, dr=DRConfig())
    else:
        found[config.variant] = replace(config, dr=None)
    return found
