"""Reflexes that recover from a push, found by a search with the cross-entropy method.

The method (Rubinstein, 1999) tries random reflexes around the best so far, and moves to the mean of
those with the highest scores. A score is the return, and more:

- At first, how far the robot steps where it is pushed, and all pushes are strong ones. A short step
  saves it from the weaker ones, and a search that has found that does not come by the long step.
- Later, how far from its first pose a robot ends, for one that stands as before takes the next push
  as it did this one. In the end half of the robots have recovered from a push before.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from mujoco_vecenv.microduck.layout import ACTIONS, ANGLES, GRAVITY
from mujoco_vecenv.train.evaluate import Act
from mujoco_vecenv.train.windows import Choose, Floats, Robots, Tell

DIRECTIONS: Final = {"forward": 1, "backward": -1}
"""Which way pushes go along the robot's heading: a reflex is sought for each."""
REFLEX: Final = 40
"""Control steps that a reflex lasts, from the first observation after the push on."""
KNOTS: Final = 9
"""Points in time between which a reflex is linear."""
FADE: Final = 8
"""Control steps over which it fades away at its end."""
SETTLED: Final = 64
"""Control steps from a push to where a search judges what came of it."""
SIDEWAYS: Final = 0.2
"""Most that it pushes to a side, m/s."""

_STOOD: Final = range(20, 60, 5)
"""Control steps that robots may have stood when a search pushes them."""
_STRIDE: Final = 16
"""Control steps from a push to where a search measures how far a foot has come."""

_MIDDLE, _REACH = 0.38, 0.07  # m/s: the unit of the features
_FEATURES: Final = 4
_WIDENED: Final = np.array([0.35, 0.25, 0.25, 0.25])  # by feature, in units of action
_STEPPED: Final = 4.0  # what a cm is worth, in reward
_LONG: Final = 6.0  # cm, beyond which it is worth no more
_RESTORED: Final = 100.0  # what a squared radian away from the first pose costs, in reward
_FAR: Final = 0.6  # squared radians, beyond which it costs no more
_ELITE: Final = 1 / 6  # of the rollouts
_SMOOTHING: Final = 0.7  # share of the new mean in the next iteration's
_NARROWING: Final = 0.3  # likewise of the new spread


@dataclass(frozen=True)
class Plan:
    """What a search looks for, and how.

    Attributes:
        weakest: pace along the heading, m/s, up to which there is no reflex: standing is enough.
        whole: pace from which on it is fully there.
        strong: lowest pace that it pushes with before `restoring`.
        paces: lowest pace from then on, and highest pace.
        spread: (features,) how far from none the first knots tried are, in units of action.
        narrowest: what the spread does not fall below.
        stepping: share of the iterations, from the first on, in which steps count. In the last of
            them, and again at `restoring`, the knots are spread anew.
        restoring: share of them after which the distance from the first pose counts.
        mixing: share of them after which every second robot has been pushed before.
        alike: whether robots are pushed at the one age at which they differ least. Some policies
            lean in as many ways as there are robots, and then what saves one fells another.
    """

    weakest: float
    whole: float
    strong: float
    paces: tuple[float, float]
    spread: tuple[float, ...]
    narrowest: float
    stepping: float
    restoring: float
    mixing: float
    alike: bool


FIRST: Final = Plan(
    weakest=0.27,
    whole=0.32,
    strong=0.35,
    paces=(0.30, 0.46),
    spread=(0.8, 0.32, 0.32, 0.2),
    narrowest=0.1,
    stepping=0.2,
    restoring=0.5,
    mixing=0.8,
    alike=True,
)
"""For a policy that stands: finds the step."""
SECOND: Final = Plan(
    weakest=0.22,
    whole=0.27,
    strong=0.24,
    paces=(0.24, 0.46),
    spread=(0.25, 0.175, 0.175, 0.175),
    narrowest=0.05,
    stepping=0,
    restoring=0,
    mixing=0,
    alike=False,
)
"""For one that was taught it: takes weaker pushes in, and robots of any age and posture."""


@dataclass(frozen=True)
class Reflex:
    """What is added to a policy's actions after a push.

    Attributes:
        knots: (KNOTS, features, 14), in units of action: at each point in time, a linear function
            of the push's features.
        plan: of the search that found it.
    """

    knots: Floats
    plan: Plan

    def after(self, velocity: Floats) -> Floats:
        """Return the (n, KNOTS, 14) that follow pushes of (n, 2) m/s, forward and to the left."""
        follow: Floats = np.einsum("kfa,nf->nka", self.knots, features(velocity, self.plan))
        return follow


def features(velocity: Floats, plan: Plan) -> Floats:
    """Return (n, features) of pushes: 1, the pace, the part to the left, and the pace squared.

    All fade to 0 towards paces along the heading that need no reflex.

    Args:
        velocity: (n, 2) m/s, forward and to the left.
        plan: says which those are.
    """
    along = np.abs(velocity[:, 0])
    pace = np.clip((along - _MIDDLE) / _REACH, None, 1.7)
    left = np.clip(velocity[:, 1] / SIDEWAYS, -1.75, 1.75)
    gate = np.clip((along - plan.weakest) / (plan.whole - plan.weakest), 0, 1)
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
    act: Act, robots: Robots, plan: Plan, iterations: int, rng: Generator, tell: Tell
) -> list[Reflex]:
    """Look for reflexes against pushes in each of DIRECTIONS.

    Args:
        act: the policy that they are added to.
        robots: as many for each direction, for windows of SETTLED steps.
        plan: what to look for.
        iterations: how long.
        rng: draws pushes and reflexes.
        tell: told of each iteration.

    Raises:
        ValueError: less than half of the robots stand.
    """
    found = {direction: _Gaussian(plan) for direction in DIRECTIONS}
    n = robots.n // len(found)
    sign = np.repeat([float(sign) for sign in DIRECTIONS.values()], n)
    shares = (plan.stepping, plan.restoring, plan.mixing)
    stepping, restoring, mixing = (int(share * iterations) for share in shares)
    survivors = None
    pool = robots.standing(act, [_most_alike(robots, act)] if plan.alike else _STOOD)
    stance = _pose(robots.pushed(pool, None, np.zeros((len(sign), 2)))).mean(0)
    for iteration in range(1, iterations + 1):
        if iteration in (stepping, restoring):
            for gaussian in found.values():
                gaussian.widen()
        low, high = plan.paces
        if iteration < restoring:
            low = plan.strong
        pace = sign * rng.uniform(low, high, len(sign))
        velocity = np.stack([pace, rng.uniform(-SIDEWAYS, SIDEWAYS, len(sign))], axis=1)
        tried = np.concatenate([gaussian.draw(rng, n) for gaussian in found.values()])
        reflexes = np.einsum("nkfa,nf->nka", tried, features(velocity, plan))
        window = robots.run(
            robots.pushed(pool, survivors, velocity),
            with_reflexes(act, reflexes),
            [SETTLED - 1] if iteration >= mixing else (),
            _STRIDE if iteration <= stepping else None,
        )
        scores = window.returns
        if iteration <= stepping:
            stride = (window.strides * sign[:, None] * 100).max(1)
            scores = scores + _STEPPED * np.clip(stride, 0, _LONG)
        if iteration >= restoring:
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
        if iteration >= mixing:
            survivors = window.survivors
    return [Reflex(gaussian.mean, plan) for gaussian in found.values()]


def _most_alike(robots: Robots, act: Act) -> int:
    """Return after how many steps, of _STOOD, robots that stand differ least in their poses."""
    poses = []

    def watched(obs: Any) -> NDArray[np.float32]:
        poses.append(_pose(obs))
        return act(obs)

    robots.standing(watched, _STOOD)
    low, high = np.quantile(poses[1:], [0.25, 0.75], axis=1)  # as few may be falling
    return min(_STOOD, key=lambda age: float(((high[age] - low[age]) ** 2).sum()))


class _Gaussian:
    """What the cross-entropy method believes of the best knots.

    Args:
        plan: how widely it searches.

    Attributes:
        mean, spread: (KNOTS, features, 14), in units of action.
    """

    def __init__(self, plan: Plan) -> None:
        self.mean = np.zeros((KNOTS, _FEATURES, ACTIONS))
        self.spread = self.mean + np.array(plan.spread)[:, None]
        self._narrowest = plan.narrowest

    def draw(self, rng: Generator, n: int) -> Floats:
        """Return (n, KNOTS, features, 14) knots to try."""
        drawn: Floats = self.mean + self.spread * rng.standard_normal((n, *self.mean.shape))
        return drawn

    def learn(self, tried: Floats, scores: Floats) -> None:
        """Move towards those of the knots tried that have the highest of their (n,) scores."""
        best = np.argsort(-scores, kind="stable")[: max(2, int(len(scores) * _ELITE))]
        elite = tried[best]
        self.mean = _SMOOTHING * elite.mean(0) + (1 - _SMOOTHING) * self.mean
        spread = _NARROWING * elite.std(0) + (1 - _NARROWING) * self.spread
        self.spread = np.maximum(spread, self._narrowest)

    def widen(self) -> None:
        """Believe less: it may have been narrowed too early."""
        self.spread = np.maximum(self.spread, _WIDENED[:, None])


def _pose(obs: NDArray[np.float32]) -> Floats:
    """Return (n, 17): the joint angles (rad) and the trunk's tilt of observations."""
    angles = obs[:, ANGLES : ANGLES + ACTIONS]
    return np.concatenate([angles, obs[:, GRAVITY : GRAVITY + 3]], axis=1, dtype=np.float64)


def with_reflexes(act: Act, reflexes: Floats) -> Choose:
    """Return a policy with reflexes of (n, KNOTS, 14)."""
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
