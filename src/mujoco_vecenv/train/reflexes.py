"""Reflexes that recover from a push, found by a search with the cross-entropy method.

The method (Rubinstein, 1999) tries random reflexes around the best so far, and moves to the mean of
those with the highest scores. In the first half of a search the score is the return: a step is hard
enough to find. Then it also counts how far from its first pose a robot ends, for one that stands as
before takes the next push as it did this one. In the last fifth, half of the robots are such.
"""

from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from mujoco_vecenv.microduck.config import MicroduckConfig
from mujoco_vecenv.microduck.layout import ACTIONS, ANGLES, GRAVITY
from mujoco_vecenv.train.config import RecoverConfig
from mujoco_vecenv.train.evaluate import Act
from mujoco_vecenv.train.windows import SEEDS, Choose, Floats, Robots, Tell

DIRECTIONS: Final = {"forward": 1, "backward": -1}
"""Which way pushes go along the robot's heading: a reflex is sought for each."""
REFLEX: Final = 40
"""Control steps that a reflex lasts, from the first observation after the push on."""
KNOTS: Final = 9
"""Points in time between which a reflex is linear."""
FADE: Final = 8
"""Control steps over which it fades away at its end."""
STOOD: Final = range(20, 60, 5)
"""Control steps that robots may have stood when a search pushes them.

All have stood as long, which is when they are most alike: some policies lean in as many ways as
there are robots, and then what saves one fells another.
"""
SETTLED: Final = 64
"""Control steps from a push to where a search judges what came of it."""
WEAKEST: Final = 0.27
"""Pace along the heading, m/s, up to which there is none: standing is enough."""
PACES: Final = (0.30, 0.46)
"""Paces along the heading that a search pushes with, m/s."""
SIDEWAYS: Final = 0.2
"""Most that it pushes to a side, m/s."""

_WHOLE, _MIDDLE, _REACH = 0.32, 0.38, 0.07  # m/s: fully there; the unit of the features
_FEATURES: Final = 4
_FIRST_SPREAD: Final = np.array([0.8, 0.32, 0.32, 0.2])  # by feature, in units of action
_WIDENED: Final = np.array([0.35, 0.25, 0.25, 0.25])
_LEAST_SPREAD: Final = 0.1
_RESTORED: Final = 100.0  # what a squared radian away from the first pose costs, in reward
_FAR: Final = 0.6  # squared radians, beyond which it costs no more
_ELITE: Final = 1 / 6  # of the rollouts
_SMOOTHING: Final = 0.7  # share of the new mean and spread in the next iteration's


@dataclass(frozen=True)
class Reflex:
    """What is added to the standing policy's actions after a push.

    Attributes:
        knots: (KNOTS, features, 14), in units of action: at each point in time, a linear function
            of the push's features.
    """

    knots: Floats

    def after(self, velocity: Floats) -> Floats:
        """Return the (n, KNOTS, 14) that follow pushes of (n, 2) m/s, forward and to the left."""
        follow: Floats = np.einsum("kfa,nf->nka", self.knots, features(velocity))
        return follow


def features(velocity: Floats) -> Floats:
    """Return (n, features) of pushes: 1, the pace, the part to the left, and the pace squared.

    All fade to 0 towards paces along the heading that need no reflex.
    """
    along = np.abs(velocity[:, 0])
    pace = np.clip((along - _MIDDLE) / _REACH, None, 1.7)
    left = np.clip(velocity[:, 1] / SIDEWAYS, -1.75, 1.75)
    gate = np.clip((along - WEAKEST) / (_WHOLE - WEAKEST), 0, 1)
    shape: Floats = np.stack([np.ones(len(pace)), pace, left, pace**2 - 0.4], axis=1)
    return gate[:, None] * shape


def at(knots: Floats, step: int) -> Floats | float:
    """Return what reflexes of (n, KNOTS, 14) add in a window's step: (n, 14)."""
    since = step - 1  # the push is seen once the step that it came in is over
    if not 0 <= since < REFLEX:
        return 0.0
    place = since / REFLEX * (KNOTS - 1)
    k = int(place)
    between: Floats = (1 - place + k) * knots[:, k] + (place - k) * knots[:, k + 1]
    return between * min(1.0, (REFLEX - since) / FADE)


def search(
    act: Act,
    environments: MicroduckConfig,
    config: RecoverConfig,
    seed: int,
    threads: int,
    tell: Tell,
) -> list[Reflex]:
    """Look for reflexes against pushes in each of DIRECTIONS.

    Args:
        act: the standing policy.
        environments: what to search in.
        config: how long.
        seed: of everything drawn.
        threads: threads for the physics.
        tell: told of each iteration.
    """
    rng = np.random.default_rng((seed, 0))
    n = config.rollouts
    found = {direction: _Gaussian() for direction in DIRECTIONS}
    sign = np.repeat([float(sign) for sign in DIRECTIONS.values()], n)
    quarter, half, late = (int(share * config.iterations) for share in (0.25, 0.5, 0.8))
    survivors = None
    with closing(Robots(environments, len(sign), SEEDS, SETTLED, rng, threads)) as robots:
        pool = robots.standing(act, [_most_alike(robots, act)])
        stance = _pose(robots.pushed(pool, None, np.zeros((len(sign), 2)))).mean(0)
        for iteration in range(1, config.iterations + 1):
            if iteration in (quarter, half):
                for gaussian in found.values():
                    gaussian.widen()
            pace = sign * rng.uniform(*PACES, len(sign))
            velocity = np.stack([pace, rng.uniform(-SIDEWAYS, SIDEWAYS, len(sign))], axis=1)
            tried = np.concatenate([gaussian.draw(rng, n) for gaussian in found.values()])
            reflexes = np.einsum("nkfa,nf->nka", tried, features(velocity))
            window = robots.run(
                robots.pushed(pool, survivors, velocity),
                with_reflexes(act, reflexes),
                [SETTLED - 1] if iteration >= late else (),
            )
            scores = window.returns
            if iteration >= half:
                away = ((_pose(window.obs) - stance) ** 2).sum(1)
                scores = scores - _RESTORED * np.minimum(away, _FAR)
            mixed = survivors is not None
            for k, (direction, gaussian) in enumerate(found.items()):
                own = slice(k * n, (k + 1) * n)
                gaussian.learn(tried[own], _beyond(scores[own], velocity[own], mixed))
                tell(
                    {
                        "stage": direction,
                        "iteration": iteration,
                        "recovered": float(window.upright[own].mean()),
                        "spread": float(gaussian.spread[:, 0].mean()),
                    }
                )
            if iteration >= late:
                survivors = window.survivors
    return [Reflex(gaussian.mean) for gaussian in found.values()]


def _most_alike(robots: Robots, act: Act) -> int:
    """Return after how many steps, of STOOD, robots that stand differ least in their poses."""
    poses = []

    def watched(obs: Any) -> NDArray[np.float32]:
        poses.append(_pose(obs))
        return act(obs)

    robots.standing(watched, STOOD)
    low, high = np.quantile(poses[1:], [0.25, 0.75], axis=1)  # as few may be falling
    return min(STOOD, key=lambda age: float(((high[age] - low[age]) ** 2).sum()))


class _Gaussian:
    """What the cross-entropy method believes of the best knots.

    Attributes:
        mean, spread: (KNOTS, features, 14), in units of action.
    """

    def __init__(self) -> None:
        self.mean = np.zeros((KNOTS, _FEATURES, ACTIONS))
        self.spread = self.mean + _FIRST_SPREAD[:, None]

    def draw(self, rng: Generator, n: int) -> Floats:
        """Return (n, KNOTS, features, 14) knots to try."""
        drawn: Floats = self.mean + self.spread * rng.standard_normal((n, *self.mean.shape))
        return drawn

    def learn(self, tried: Floats, scores: Floats) -> None:
        """Move towards those of the knots tried that have the highest of their (n,) scores."""
        best = np.argsort(-scores, kind="stable")[: max(2, int(len(scores) * _ELITE))]
        elite = tried[best]
        self.mean = _SMOOTHING * elite.mean(0) + (1 - _SMOOTHING) * self.mean
        spread = _SMOOTHING * elite.std(0) + (1 - _SMOOTHING) * self.spread
        self.spread = np.maximum(spread, _LEAST_SPREAD)

    def widen(self) -> None:
        """Believe less: it may have been narrowed too early."""
        self.spread = np.maximum(self.spread, _WIDENED[:, None])


def _pose(obs: NDArray[np.float32]) -> Floats:
    """Return (n, 17): the joint angles (rad) and the trunk's tilt of observations."""
    angles = obs[:, ANGLES : ANGLES + ACTIONS]
    return np.concatenate([angles, obs[:, GRAVITY : GRAVITY + 3]], axis=1, dtype=np.float64)


def with_reflexes(act: Act, reflexes: Floats) -> Choose:
    """Return the standing policy with reflexes."""
    return lambda obs, step: act(obs) + at(reflexes, step)


def _beyond(scores: Floats, velocity: Floats, mixed: bool) -> Floats:
    """Return scores less what is to be expected: hard pushes are no bad rollouts.

    Args:
        scores: (n,).
        velocity: (n, 2) m/s of the pushes.
        mixed: whether every second robot had been pushed before, see Robots.pushed.
    """
    along, left = velocity.T
    known = [np.ones(len(along)), along, left, along**2, left**2, abs(left), along * abs(left)]
    if mixed:
        again = np.arange(len(along)) % 2
        known += [again, again * along]
    expected = np.stack(known, axis=1)
    left_over: Floats = scores - expected @ np.linalg.lstsq(expected, scores, rcond=None)[0]
    return left_over
