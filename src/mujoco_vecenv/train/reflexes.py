"""Reflexes that recover from a push, found by a search with the cross-entropy method.

The method (Rubinstein, 1999) tries random reflexes around the best so far, and moves to the mean of
those with the highest returns.
"""

from contextlib import closing
from dataclasses import dataclass
from typing import Final

import numpy as np

from mujoco_vecenv.microduck.config import MicroduckConfig
from mujoco_vecenv.microduck.layout import ACTIONS
from mujoco_vecenv.train.config import RecoverConfig
from mujoco_vecenv.train.evaluate import Act
from mujoco_vecenv.train.windows import SEEDS, Choose, Floats, Robots, Tell, take

DIRECTIONS: Final = {"forward": 1, "backward": -1}
"""The two searches: which way their pushes go along the robot's heading."""
REFLEX: Final = 40
"""Control steps that a reflex lasts, from the first observation after the push on."""
KNOTS: Final = 9
"""Points in time between which a reflex is linear."""
FADE: Final = 8
"""Control steps over which it fades away at its end."""
WEAKEST: Final = 0.27
"""Pace along the heading, m/s, up to which there is none: standing is enough."""
PACES: Final = (0.30, 0.46)
"""Paces along the heading that a search pushes with, m/s."""
SIDEWAYS: Final = 0.2
"""Most that it pushes to a side, m/s."""

_WHOLE, _MIDDLE, _REACH = 0.32, 0.38, 0.07  # m/s: fully there; the unit of the features
_FEATURES: Final = 4
_FIRST_SPREAD: Final = np.array([0.8, 0.32, 0.32, 0.2])  # by feature, in units of action
_WIDENED: Final = np.array([0.35, 0.25, 0.25, 0.25])  # half way, for what was narrowed too early
_EASY: Final = (25, 30)  # steps that robots have stood in the first half of a search
_LEAST_SPREAD: Final = 0.1
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
    direction: str,
    seed: int,
    threads: int,
    tell: Tell,
) -> Reflex:
    """Look for a reflex against pushes in one of DIRECTIONS.

    Args:
        act: the standing policy.
        environments: what to search in.
        config: how long.
        direction: of the pushes.
        seed: of everything drawn.
        threads: threads for the physics.
        tell: told of each iteration.
    """
    which, sign = list(DIRECTIONS).index(direction), DIRECTIONS[direction]
    rng = np.random.default_rng((seed, which))
    n = config.rollouts
    mean = np.zeros((KNOTS, _FEATURES, ACTIONS))
    spread = np.broadcast_to(_FIRST_SPREAD[:, None], mean.shape)
    survivors = None
    half = max(1, config.iterations // 2)
    with closing(Robots(environments, n, SEEDS + n * which, rng, threads)) as robots:
        pool = robots.standing(act, *_EASY)
        for iteration in range(1, config.iterations + 1):
            if iteration == half:
                pool = robots.standing(act)
                spread = np.maximum(spread, _WIDENED[:, None])
            velocity = np.stack(
                [sign * rng.uniform(*PACES, n), rng.uniform(-SIDEWAYS, SIDEWAYS, n)], axis=1
            )
            tried = mean + spread * rng.standard_normal((n, *mean.shape))
            reflexes = np.einsum("nkfa,nf->nka", tried, features(velocity))
            window = robots.run(
                robots.pushed(pool, survivors, velocity), with_reflexes(act, reflexes)
            )
            if iteration >= half:  # before that, few and by luck
                survivors = take(window.rows, np.flatnonzero(window.upright))
            best = np.argsort(-_beyond(window.returns, velocity), kind="stable")
            best = best[: max(2, int(n * _ELITE))]
            mean = _SMOOTHING * tried[best].mean(0) + (1 - _SMOOTHING) * mean
            spread = _SMOOTHING * tried[best].std(0) + (1 - _SMOOTHING) * spread
            spread = np.maximum(spread, _LEAST_SPREAD)
            tell(
                {
                    "stage": direction,
                    "iteration": iteration,
                    "recovered": float(window.upright.mean()),
                    "spread": float(spread[:, 0].mean()),
                }
            )
    return Reflex(mean)


def with_reflexes(act: Act, reflexes: Floats) -> Choose:
    """Return the standing policy with reflexes."""
    return lambda obs, step: act(obs) + at(reflexes, step)


def _beyond(returns: Floats, velocity: Floats) -> Floats:
    """Return returns less what is to be expected of the push: hard pushes are no bad rollouts."""
    along, left = velocity.T
    known = np.stack(
        [np.ones(len(along)), along, left, along**2, left**2, abs(left), along * abs(left)], axis=1
    )
    left_over: Floats = returns - known @ np.linalg.lstsq(known, returns, rcond=None)[0]
    return left_over
