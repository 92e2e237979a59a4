"""The proof that two vector environments are the same environment to the last bit.

Whole episodes run on both from the same seeds with the same random actions, and everything they
return is compared as bits: no tolerance, -0.0 differs from 0.0, a float from an int. How close two
unequal numbers are is reported apart from whether they are equal.
"""

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from mujoco_vecenv.infos import Info
from mujoco_vecenv.microduck.draws import Episode
from mujoco_vecenv.microduck.randomization import DRConfig
from mujoco_vecenv.vector.vec_env import VecEnv


class Comparable(Protocol):
    """What can be compared: a VecEnv, or anything that steps like one."""

    n: int

    def reset(self) -> NDArray[np.float32]:
        """Return the (n, 48) present observations."""

    def step(self, actions: NDArray[np.float64]) -> tuple[Any, Any, Any, Sequence[Info]]:
        """Step all environments."""


@dataclass(frozen=True)
class Case:
    """One configuration the contract covers.

    Attributes:
        name: what is particular about it.
        keywords: attributes of `MicroduckConfig`.
    """

    name: str
    keywords: dict[str, Any]


_RANDOMIZED: Final = {
    "groundcontact": "ground",
    "groundcontact_backlash": "backlash",
    "rollers": "rollers",
}

CASES: Final = (
    Case("v1", {}),
    Case("v2", {"reward": "v2"}),
    Case("v1, latency 2", {"latency": 2}),
    Case("v2, latency 2", {"reward": "v2", "latency": 2}),
    Case("v1, latency 5", {"latency": 5}),
    Case("v1, initial noise 2", {"init_noise": 2}),
    Case("v1, no initial noise", {"init_noise": 0}),
    Case("v2, no initial noise", {"reward": "v2", "init_noise": 0}),
    Case("v1, scale 0.5, 5 pushes", {"action_scale": 0.5, "n_pushes": 5}),
    Case("v2, scale 0.5, 5 pushes", {"reward": "v2", "action_scale": 0.5, "n_pushes": 5}),
    Case("v1, walk", {"variant": "walk"}),
    Case("v1, groundcontact_backlash", {"variant": "groundcontact_backlash"}),
    Case("v2, walk_backlash", {"variant": "walk_backlash", "reward": "v2"}),
    Case("v1, rollers", {"variant": "rollers"}),
    *(
        Case(f"{name}, {short}", {"variant": variant, **keywords})
        for variant, short in _RANDOMIZED.items()
        for name, keywords in (
            ("v2, noise", {"sensor_noise": True, "reward": "v2"}),
            ("v1, DR", {"dr": DRConfig(sensor_noise=False)}),
            ("v2, DR + noise", {"dr": DRConfig(), "reward": "v2"}),
            ("v2, DR latency 1", {"dr": DRConfig(latency=(1, 1)), "reward": "v2"}),
            ("v1, DR noise 0.3", {"dr": DRConfig(init_noise=(0.3, 0.3), sensor_noise=False)}),
            ("v1, DR constants", {"dr": DRConfig(recompute_constants=True)}),
        )
    ),
)

EPISODES: Final = 2
"""Whole episodes that each environment runs, one after another."""

DRAW_SEEDS: Final = 100
"""Seeds whose every draw is compared."""


@dataclass
class Tally:
    """What a comparison found.

    Attributes:
        episodes: whole episodes compared.
        observations: observations compared, terminal ones included.
        identical: how many of them were the same bits.
        max_abs: largest absolute difference between observation elements.
        max_rel: largest difference relative to the reference's element.
        reward_mismatches: rewards and done flags that were not the same bits.
        info_mismatches: info fields, every reward term among them, that were not the same.
        first: where the first difference was, or "".
    """

    episodes: int = 0
    observations: int = 0
    identical: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0
    reward_mismatches: int = 0
    info_mismatches: int = 0
    first: str = ""

    @property
    def equal(self) -> bool:
        """Whether every bit was the same."""
        return (
            self.identical == self.observations
            and not self.reward_mismatches
            and not self.info_mismatches
        )

    def add(self, other: "Tally") -> None:
        """Count another comparison in."""
        self.episodes += other.episodes
        self.observations += other.observations
        self.identical += other.identical
        self.max_abs = max(self.max_abs, other.max_abs)
        self.max_rel = max(self.max_rel, other.max_rel)
        self.reward_mismatches += other.reward_mismatches
        self.info_mismatches += other.info_mismatches
        self.first = self.first or other.first


@dataclass
class Report:
    """The contract's outcome.

    Attributes:
        cases: a tally per case.
        seeds: seeds whose episodes' draws were compared: factors, latency, first state, pushes
            and sensor noise.
        same_draws: how many of them drew the same bits.
    """

    cases: dict[str, Tally] = field(default_factory=dict)
    seeds: int = 0
    same_draws: int = 0

    @property
    def equal(self) -> bool:
        """Whether every bit was the same."""
        return self.total.equal and self.same_draws == self.seeds

    @property
    def total(self) -> Tally:
        """All cases together."""
        total = Tally()
        for tally in self.cases.values():
            total.add(tally)
        return total

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {
            "equal": self.equal,
            "seeds": self.seeds,
            "same_draws": self.same_draws,
            "cases": {name: asdict(tally) for name, tally in self.cases.items()},
            "total": asdict(self.total),
        }


def run_contract(
    cases: Sequence[Case], environments: int, advance: Callable[[int], None], backend: str = "batch"
) -> Report:
    """Compare a backend with the reference.

    Args:
        cases: the configurations to cover.
        environments: environments per case, each with a seed of its own.
        advance: told how many environment steps have been compared since the last call.
        backend: the backend to compare with `sync`, which runs the references themselves.

    Returns:
        The report.
    """
    report = Report()
    for number, case in enumerate(cases):
        seed = 1000 * number
        with (
            VecEnv(environments, seed, True, backend="sync", **case.keywords) as reference,
            VecEnv(environments, seed, True, backend=backend, **case.keywords) as candidate,
        ):
            # Two whole episodes, so that what one leaves behind for the next is compared too.
            steps = EPISODES * reference.config.episode_steps
            report.cases[case.name] = compare(reference, candidate, steps, seed, advance)
    with (
        VecEnv(DRAW_SEEDS, backend="sync", dr=True) as reference,
        VecEnv(DRAW_SEEDS, backend=backend, dr=True) as candidate,
    ):
        pairs = zip(reference.record(), candidate.record(), strict=True)
        report.seeds = DRAW_SEEDS
        report.same_draws = sum(same_episodes(ours, theirs) for ours, theirs in pairs)
    return report


def compare(
    reference: Comparable,
    candidate: Comparable,
    steps: int,
    seed: int,
    advance: Callable[[int], None] = lambda steps: None,
) -> Tally:
    """Step two vector environments side by side and compare everything they return.

    Args:
        reference: the one that is right.
        candidate: the one that is held against it.
        steps: how many steps to take.
        seed: seed of the actions, uniform in [-1.2, 1.2], so that clipping is covered.
        advance: told how many environment steps have been compared since the last call.

    Returns:
        The tally.
    """
    tally = Tally()
    rng = np.random.default_rng(seed)
    compare_observations(tally, "at the first reset", reference.reset(), candidate.reset())
    for step in range(steps):
        actions = rng.uniform(-1.2, 1.2, (reference.n, 14))
        ours, theirs = reference.step(actions), candidate.step(actions)
        place = f"at step {step}"
        compare_observations(tally, place, ours[0], theirs[0])
        for name, right, other in (
            ("reward", ours[1], theirs[1]),
            ("done", ours[2], theirs[2]),
        ):
            different = [i for i in range(reference.n) if not same_bits(right[i], other[i])]
            tally.reward_mismatches += len(different)
            note(tally, different, f"{name} of environment {{}} {place}")
        tally.episodes += int(np.count_nonzero(ours[2]))
        for i in range(reference.n):
            _compare_infos(tally, f"{place}, environment {i}", ours[3][i], theirs[3][i])
        advance(reference.n)
    return tally


def same_episodes(a: Episode, b: Episode) -> bool:
    """Whether two episodes drew the same bits."""
    factors = (
        None if episode.factors is None else episode.factors.as_vector() for episode in (a, b)
    )
    others = [f.name for f in fields(Episode) if f.name != "factors"]
    return same_bits(*factors) and all(same_bits(getattr(a, f), getattr(b, f)) for f in others)


def same_bits(a: object, b: object) -> bool:
    """Whether two values are of the same type and the same to the last bit."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if type(a) is not type(b):
        return False
    if isinstance(a, np.generic) and isinstance(b, np.generic):
        return a.tobytes() == b.tobytes()
    if isinstance(a, float) and isinstance(b, float):
        return struct.pack("<d", a) == struct.pack("<d", b)
    return bool(a == b)


def compare_observations(
    tally: Tally, place: str, right: NDArray[Any], other: NDArray[Any]
) -> None:
    """Count (n, channels) observations, and those that differ, into a tally."""
    different = [i for i in range(len(right)) if not same_bits(right[i], other[i])]
    tally.observations += len(right)
    tally.identical += len(right) - len(different)
    note(tally, different, f"observation of environment {{}} {place}")
    for i in different:
        a, b = right[i].astype(np.float64), other[i].astype(np.float64)
        gap = np.abs(a - b)
        tally.max_abs = max(tally.max_abs, float(gap.max()))
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = np.where(gap > 0, gap / np.abs(a), 0.0)
        tally.max_rel = max(tally.max_rel, float(relative.max()))


def _compare_infos(tally: Tally, place: str, right: Info, other: Info) -> None:
    for key in {**right, **other}:
        if key == "terminal_obs" and key in right and key in other:
            compare_observations(
                tally, f"at its end, {place}", right[key][np.newaxis], other[key][np.newaxis]
            )
        elif key == "terms" and key in right and key in other:
            terms = {**right[key], **other[key]}
            missing = math.nan
            different = [
                term
                for term in terms
                if not same_bits(right[key].get(term, missing), other[key].get(term, missing))
            ]
            tally.info_mismatches += len(different)
            note(tally, different, f"term {{}} {place}")
        elif key not in right or key not in other or not same_bits(right[key], other[key]):
            tally.info_mismatches += 1
            note(tally, [key], f"info {{}} {place}")


def note(tally: Tally, different: Sequence[Any], where: str) -> None:
    """Remember where the first difference was; {} in `where` stands for what differs."""
    if different and not tally.first:
        tally.first = where.format(different[0])
