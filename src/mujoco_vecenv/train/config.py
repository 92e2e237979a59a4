"""What a training run can be told."""

from dataclasses import dataclass, field, replace
from typing import Any, Final

from mujoco_vecenv.checks import check_integer, check_number


def _option(default: Any, doc: str) -> Any:
    return field(default=default, metadata={"doc": doc})


@dataclass(frozen=True)
class PPOConfig:
    """Proximal policy optimisation: Schulman et al., https://arxiv.org/abs/1707.06347.

    Every attribute is an option of `mjvec train`, with the line that describes it here.

    Raises:
        TypeError, ValueError: a value of the wrong type or outside its range.
    """

    total_steps: int = _option(5_000_000, "environment steps over which the learning rate anneals")
    n: int = _option(8, "environments")
    steps: int = _option(256, "control steps of each environment between updates")
    learning_rate: float = _option(3e-4, "Adam's step size, annealed linearly to 0")
    gamma: float = _option(0.99, "discount factor")
    gae_lambda: float = _option(0.95, "lambda of generalised advantage estimation")
    epochs: int = _option(5, "passes over the rollout in an update")
    minibatches: int = _option(8, "gradient steps in a pass")
    clip: float = _option(0.2, "clipping range of the probability ratio")
    entropy: float = _option(0.0, "weight of the entropy bonus")
    value: float = _option(0.5, "weight of the value loss")
    max_grad_norm: float = _option(0.5, "gradients are scaled down to this norm")
    target_kl: float | None = _option(
        None, "end an update after the epoch whose mean approximate KL exceeds this"
    )
    adaptive_kl: float | None = _option(
        None, "adapt the step size so that updates move the policy by this KL, instead of annealing"
    )
    reward_scale: float = _option(1.0, "rewards are multiplied by this before PPO sees them")
    initial_log_std: float = _option(-0.5, "log of the action noise at the start")
    final_log_std: float | None = _option(
        None, "log of the action noise at the end, linear from the start instead of learned"
    )
    noise_correlation: float = _option(
        0.0, "correlation of the action noise from one step to the next, at every joint"
    )
    hidden: int = _option(256, "units in each of the two hidden layers of actor and critic")

    def __post_init__(self) -> None:
        for name in ("total_steps", "n", "steps", "epochs", "minibatches", "hidden"):
            check_integer(name, getattr(self, name), 1)
        rates = ("learning_rate", "clip", "max_grad_norm", "reward_scale")
        for name in (*rates, "entropy", "value", "gamma", "gae_lambda", "initial_log_std"):
            number = check_number(name, getattr(self, name))
            if name in rates and number <= 0:
                raise ValueError(f"{name} must be positive, got {number!r}")
            if name != "initial_log_std" and number < 0:
                raise ValueError(f"{name} must be 0 or more, got {number!r}")
        for name in ("gamma", "gae_lambda"):
            if getattr(self, name) > 1:
                raise ValueError(f"{name} must be 1 or less, got {getattr(self, name)!r}")
        if self.final_log_std is not None:
            check_number("final_log_std", self.final_log_std)
        if not 0 <= check_number("noise_correlation", self.noise_correlation) < 1:
            raise ValueError(
                f"noise_correlation must be from 0 to below 1, got {self.noise_correlation!r}"
            )
        for name in ("target_kl", "adaptive_kl"):
            value = getattr(self, name)
            if value is not None and check_number(name, value) <= 0:
                raise ValueError(f"{name} must be positive, got {value!r}")
        if self.batch < 2 * self.minibatches:
            raise ValueError(
                f"minibatches={self.minibatches} leaves fewer than two of the n x steps = "
                f"{self.batch} observations in each: advantages could not be normalised"
            )
        if self.batch % self.minibatches:
            raise ValueError(
                f"n x steps = {self.n} x {self.steps} = {self.batch} observations cannot be split "
                f"into {self.minibatches} equal minibatches"
            )

    @property
    def batch(self) -> int:
        """Environment steps between updates."""
        return self.n * self.steps


@dataclass(frozen=True)
class RecoverConfig:
    """How long to search for reflexes, and to imitate them.

    Every attribute is an option of `mjvec recover`, with the line that describes it here.

    Raises:
        TypeError, ValueError: a value of the wrong type or outside its range.
    """

    rollouts: int = _option(256, "robots that are pushed at once")
    iterations: int = _option(200, "iterations of the search, forward and backward")
    rounds: int = _option(30, "rounds of imitation")
    iterations_again: int = _option(50, "iterations of a second search, 0 for none")
    rounds_again: int = _option(15, "rounds of imitation after that")

    def __post_init__(self) -> None:
        least = dict(rollouts=16, iterations=1, rounds=1, iterations_again=0, rounds_again=1)
        for name, value in vars(self).items():
            check_integer(name, value, least[name])


@dataclass(frozen=True)
class Preset:
    """Where a training run begins.

    Attributes:
        doc: what it is for.
        ppo: the values in which the algorithm differs from PPOConfig's defaults.
        env: the values in which the environments differ from MicroduckConfig's. A preset that has
            some is for the Microduck alone.
        recover: how the policy learns to recover from stronger pushes afterwards.
    """

    doc: str
    ppo: dict[str, Any]
    env: dict[str, Any]
    recover: RecoverConfig | None = None


_MINUTE: Final = Preset(
    "stands within a minute on two cores",
    {
        "n": 64,
        "steps": 64,
        "target_kl": 0.02,
        "reward_scale": 0.1,
        "initial_log_std": -1.0,
        "noise_correlation": 0.8,
        "total_steps": 300_000,
    },
    {"episode_steps": 75, "n_pushes": 1},
)

PRESETS: Final = {
    "default": Preset("PPOConfig as it is", {}, {}),
    "minute": _MINUTE,
    "steady": replace(
        _MINUTE,
        doc="minute, then what mjvec recover does: it steps where a push asks for it",
        recover=RecoverConfig(),
    ),
    "stand": Preset(
        "longer, with stronger pushes and wider first poses",
        {
            "n": 64,
            "steps": 64,
            "learning_rate": 3e-4,
            "target_kl": 0.02,
            "reward_scale": 0.1,
            "initial_log_std": -1.2,
            "total_steps": 4_000_000,
        },
        {"episode_steps": 150, "n_pushes": 2, "push_speed": (0.2, 0.5), "init_noise": 0.25},
    ),
    "suite": Preset(
        "a million steps of one of Gymnasium's tasks, such as HalfCheetah-v5",
        {
            "n": 32,
            "steps": 64,
            "target_kl": 0.02,
            "reward_scale": 0.1,
            "total_steps": 1_000_000,
        },
        {},
    ),
}
"""Name to preset. The reward is scaled so that the critic's gradients do not drown the actor's."""
