"""A Microduck that stands learns to recover from pushes that fell it: search, then imitation.

Beyond what its soles can hold, a push needs a movement that is worth nothing until it is complete,
and policy gradients do not come by it. A search in the space of movements does. What it finds
depends on the push, which the robot cannot see; so a policy is then taught to do the same from what
it observes, in the states that it gets into itself.

- A `Reflex` is added to the policy's actions after a push. The cross-entropy method looks for one
  against pushes from behind and for one against pushes from ahead.
- Imitation is DAgger (Ross et al., https://arxiv.org/abs/1011.0686): the policy acts, the one that
  it began as says with its reflex what it would have done, and the policy learns that.

Then both once more: the policy that was taught is what the second search adds its reflexes to.

Both work on windows: a robot that stands, a push in the first step, and what comes of it. Half of
imitation's robots have recovered from a push before, and so have the search's in the end.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray

from mujoco_vecenv.archive import Arrays
from mujoco_vecenv.microduck.config import MicroduckConfig
from mujoco_vecenv.microduck.layout import ACTIONS
from mujoco_vecenv.tasks import MICRODUCK
from mujoco_vecenv.train.config import RecoverConfig
from mujoco_vecenv.train.policy import RECOVERED, Float32s, Policy
from mujoco_vecenv.train.ppo import network, normalize
from mujoco_vecenv.train.reflexes import (
    DIRECTIONS,
    FIRST,
    SECOND,
    SETTLED,
    SIDEWAYS,
    Plan,
    Reflex,
    search,
    with_reflexes,
)
from mujoco_vecenv.train.windows import (
    SEEDS,
    Choose,
    Floats,
    Robots,
    Tell,
    Window,
)

IMITATION: Final = "imitation"
"""The stage after a search, as the log calls it."""

_WINDOW: Final = 96  # control steps from a push to the end of its window of imitation
_STOOD: Final = range(25, 95, 5)  # control steps that its robots have stood
_NEXT: Final = range(64, _WINDOW, 8)  # steps since a push at which the next may come
_NOISE: Final = 0.05  # on the actions of imitation's rollouts, in units of action
_MOST: Final = 1.6  # what is imitated lies within this; environments clip to 1
_MINIBATCH: Final = 1024
_GRADIENT_STEPS: Final = 400  # in a round
_RATES: Final = (1e-3, 1e-4)  # Adam's step size, first and last
_TEACHER: Final = 0.3  # share of the rounds in which the teacher acts too, ever less
_RECENT: Final = 5  # rounds from which every second minibatch is drawn


@dataclass(frozen=True)
class _Part:
    """A search and the imitation of what it found.

    Attributes:
        plan: of the search.
        iterations: of it.
        rounds: of imitation.
        suffix: what the names of its stages end with in the log.
    """

    plan: Plan
    iterations: int
    rounds: int
    suffix: str

    @property
    def stages(self) -> dict[str, int]:
        """Its stages, in order, and the iterations of each."""
        stages = dict.fromkeys(DIRECTIONS, self.iterations) | {IMITATION: self.rounds}
        return {name + self.suffix: total for name, total in stages.items()}

    @property
    def steps(self) -> int:
        """Control steps of each robot."""
        # Before a search the robots stand, for one window or two, and before imitation for one.
        searches = len(DIRECTIONS) * (1 + self.plan.alike + self.iterations) * SETTLED
        return searches + (1 + self.rounds) * _WINDOW


def _parts(config: RecoverConfig) -> list[_Part]:
    first = _Part(FIRST, config.iterations, config.rounds, "")
    second = _Part(SECOND, config.iterations_again, config.rounds_again, " again")
    return [first, second] if config.iterations_again else [first]


def stages(config: RecoverConfig) -> dict[str, int]:
    """Return the log's stages, in order, and the iterations of each."""
    return {name: total for part in _parts(config) for name, total in part.stages.items()}


def steps(config: RecoverConfig) -> int:
    """Return the environment steps that it takes."""
    return sum(part.steps for part in _parts(config)) * config.rollouts


def recover(policy: Policy, config: RecoverConfig, seed: int, threads: int, tell: Tell) -> Policy:
    """Return a policy that does what `policy` does, and recovers from stronger pushes.

    Call within `torch_threads(1)`. The result depends on all arguments but `threads` and `tell`.

    Args:
        policy: one that stands.
        config: how long to search and to imitate.
        seed: of everything drawn.
        threads: threads for the physics.
        tell: told of what was reached.

    Raises:
        ValueError: the policy does not stand, or is for another task.
        RuntimeError: what it has become after the first imitation does not stand.
    """
    environments = pushable(policy)
    n, both = config.rollouts, len(DIRECTIONS) * config.rollouts
    header = policy.header | {
        "steps": policy.header["steps"] + steps(config),
        RECOVERED: {**asdict(config), "seed": seed},
    }
    for k, part in enumerate(_parts(config)):

        def told(line: dict[str, Any], suffix: str = part.suffix) -> None:
            tell(line | {"stage": line["stage"] + suffix})

        rng, other = (np.random.default_rng((seed, stream)) for stream in (2 * k, 2 * k + 1))
        try:
            with closing(Robots(environments, both, SEEDS, SETTLED, rng, threads)) as robots:
                reflexes = search(policy.actor(), robots, part.plan, part.iterations, rng, told)
            with closing(Robots(environments, n, SEEDS + both, _WINDOW, other, threads)) as robots:
                arrays = _imitate(policy, reflexes, robots, part.rounds, other, told)
        except ValueError as error:
            if k == 0:
                raise
            raise RuntimeError(
                "after the first imitation the robots fall by themselves: try more rollouts or "
                "rounds, or iterations_again=0"
            ) from error
        policy = Policy(arrays, header)
    return policy


def pushable(policy: Policy) -> MicroduckConfig:
    """Return the environments of a policy.

    Raises:
        ValueError: they are no Microducks.
    """
    environments = policy.config
    if not isinstance(environments, MicroduckConfig):
        raise ValueError(
            f"only {MICRODUCK} is pushed, and this is a policy for {environments.task}"
        )
    return environments


def _imitate(
    policy: Policy,
    reflexes: Sequence[Reflex],
    robots: Robots,
    rounds: int,
    rng: Generator,
    tell: Tell,
) -> Arrays:
    """Return the policy's arrays with an actor that does what the policy does with reflexes.

    Args:
        policy: what the reflexes are added to.
        reflexes: against pushes forward and backward.
        robots: for windows of _WINDOW steps.
        rounds: how long.
        rng: draws pushes, noise and minibatches.
        tell: told of each round.
    """
    act, n = policy.actor(), robots.n
    student = _Student(policy, rng)
    pool = robots.standing(act, _STOOD)
    survivors = None
    for done in range(rounds):
        velocity = _pushes(rng, n, reflexes[0].plan)
        follow = [reflex.after(velocity) for reflex in reflexes]
        teacher = with_reflexes(act, np.where(velocity[:, :1, None] > 0, *follow))
        taught = rng.random(n) < 1 - done / (_TEACHER * rounds)
        obs = robots.pushed(pool, survivors, velocity)
        window = student.watch(robots, obs, teacher, taught)
        survivors = window.survivors
        loss = student.learn((done + 1) / rounds)
        alone = window.upright[~taught]
        tell(
            {
                "stage": IMITATION,
                "iteration": done + 1,
                "recovered": float(alone.mean()) if len(alone) else None,
                "loss": loss,
            }
        )
    return policy.arrays | student.arrays()


class _Student:
    """An actor that learns from what a teacher would have done.

    Args:
        policy: what it begins as.
        rng: draws noise and minibatches.
    """

    def __init__(self, policy: Policy, rng: Generator):
        self._rng = rng
        self._normalization = policy.offset_and_scale
        self._actor = network(policy.arrays, "actor")
        self._optimizer = torch.optim.Adam(self._actor.parameters(), fused=True)
        self._seen: list[Float32s] = []
        self._told: list[Float32s] = []

    def watch(self, robots: Robots, obs: Any, teacher: Choose, taught: NDArray[np.bool_]) -> Window:
        """Run a window and remember what the teacher would have done in it.

        Args:
            robots: that were pushed.
            obs: (n, 48) their observations.
            teacher: what to learn.
            taught: (n,) with whom the teacher itself acts.
        """
        seen = np.empty((robots.steps, *obs.shape), np.float32)
        told = np.empty((robots.steps, len(obs), ACTIONS), np.float32)

        def choose(obs: Any, step: int) -> Floats:
            normalize(obs, *self._normalization, seen[step])
            told[step] = np.clip(teacher(obs, step), -_MOST, _MOST)
            with torch.inference_mode():
                own = self._actor(torch.from_numpy(seen[step])).numpy()
            noise = _NOISE * self._rng.standard_normal(own.shape)
            actions: Floats = np.where(taught[:, None], told[step], own) + noise
            return actions

        window = robots.run(obs, choose, _NEXT)
        self._seen.append(seen.reshape(-1, seen.shape[2]))
        self._told.append(told.reshape(-1, ACTIONS))
        return window

    def learn(self, progress: float) -> float:
        """Take a round's gradient steps and return the mean loss.

        Args:
            progress: share of the rounds that are over with this one.
        """
        first, last = _RATES
        for group in self._optimizer.param_groups:
            group["lr"] = first + progress * (last - first)
        x, y = (torch.from_numpy(np.concatenate(all_)) for all_ in (self._seen, self._told))
        recent = max(0, len(x) - _RECENT * len(self._seen[0]))
        total = 0.0
        for k in range(_GRADIENT_STEPS):
            ids = torch.from_numpy(self._rng.integers(recent if k % 2 else 0, len(x), _MINIBATCH))
            loss = (self._actor(x[ids]) - y[ids]).square().mean()
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
            total += loss.item()
        return total / _GRADIENT_STEPS

    def arrays(self) -> Arrays:
        """Return the actor's weights, as a policy has them."""
        weights = self._actor.state_dict()
        return {f"actor.{name}": value.numpy() for name, value in weights.items()}


def _pushes(rng: Generator, n: int, plan: Plan) -> Floats:
    """Return (n, 2) pushes, m/s: half as episodes have them unless told otherwise, half strong."""
    strong = np.stack(
        [
            rng.choice([-1.0, 1.0], n) * rng.uniform(plan.weakest, plan.paces[1], n),
            rng.uniform(-SIDEWAYS, SIDEWAYS, n),
        ],
        axis=1,
    )
    speed = rng.uniform(*MicroduckConfig().push_speed, n)
    angle = rng.uniform(0, 2 * np.pi, n)
    usual = np.stack([speed * np.cos(angle), speed * np.sin(angle)], axis=1)
    return np.where(rng.random((n, 1)) < 0.5, strong, usual)
