"""A trained policy as plain arrays: the observation normaliser and the networks' layers.

Acting needs no PyTorch. The mean action of an observation is the same to the last bit however many
observations are passed together, so that one environment evaluates as a hundred do.

A policy of another task than the Microduck's has learned actions in [-1, 1], and its arrays hold
the limits that they are mapped onto: what acts returns the action to pass to the environment.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mujoco_vecenv import archive
from mujoco_vecenv.checks import check_integer
from mujoco_vecenv.engine.compiled import compiled
from mujoco_vecenv.train.environments import (
    ActionScale,
    EnvConfig,
    TaskConfig,
    environments_from_plain,
    found_at,
    plain_environments,
)

FILE: Final = "policy.npz"
"""Name of the policy in a run's folder."""
RECOVERED: Final = "recovered"
"""What the header of a policy that was taught to recover says so with."""
CLIP: Final = 10.0
"""Normalised observations are clipped to this many standard deviations."""
LAYERS: Final = ("0", "2", "4")
"""Names of the linear layers; the tanh between them have the odd numbers."""

_FORMAT: Final = "mujoco-vecenv policy"
_VERSION: Final = 1
_TINY: Final = 1e-8  # keeps a channel that never varies from dividing by 0

Float32s = NDArray[np.float32]


class Normalizer:
    """Mean and variance of every observation so far, each channel by itself.

    Blocks are merged by the update of Chan, Golub and LeVeque (1979), Welford's for blocks. It
    takes in a rollout once the rollout is over: meanwhile the policy holds still.

    Attributes:
        count: observations taken in.
        mean: (channels,) float64.
        squares: (channels,) float64, the sums of squared deviations from the mean.
    """

    def __init__(self, channels: int):
        self.count = 0
        self.mean = np.zeros(channels)
        self.squares = np.zeros(channels)

    def update(self, block: Float32s) -> None:
        """Take in observations.

        Args:
            block: (any number, channels).
        """
        values = block.astype(np.float64)
        mean = values.mean(0)
        delta = mean - self.mean
        count = self.count + len(values)
        share = len(values) / count
        self.squares += ((values - mean) ** 2).sum(0) + delta**2 * (self.count * share)
        self.mean += delta * share
        self.count = count

    def offset_and_scale(self) -> tuple[Float32s, Float32s]:
        """Return (channels,) float32 each: subtract the first, multiply by the second, clip."""
        scale = 1 / np.sqrt(self.squares / self.count + _TINY) if self.count else 0 * self.mean + 1
        return self.mean.astype(np.float32), scale.astype(np.float32)


@dataclass(frozen=True)
class Policy:
    """What acts, and what it was trained with.

    Attributes:
        arrays: `normalizer.mean`, `.squares` and `.count`; `actor.K.weight` (outputs, inputs) and
            `actor.K.bias` for K in LAYERS, likewise `critic`; `log_std`. Of other tasks than the
            Microduck's also `action.low` and `action.high`, the limits of actions.
        header: the environments, `config` or `task` and `options`; `ppo` of the algorithm, `seed`,
            `steps` of training; of one that was taught to recover, RECOVERED and with what.
    """

    arrays: archive.Arrays
    header: dict[str, Any]

    @classmethod
    def load(cls, path: str | Path) -> "Policy":
        """Read a policy.

        Args:
            path: the file, or the folder of a training run.

        Raises:
            OSError: the file cannot be opened.
            ValueError: it is no policy, of another version, or damaged.
        """
        path = Path(path)
        if path.is_dir():
            path = path / FILE
        header, arrays = archive.load(path, _FORMAT, _VERSION)
        policy = cls(arrays, header)
        try:
            check_integer("steps", header["steps"], 0)
            _check(arrays, limited=isinstance(policy.config, TaskConfig))
        except Exception as error:  # whatever a foreign header leads to
            raise ValueError(f"{path} is damaged: {error!r}") from error
        return policy

    def save(self, path: str | Path) -> None:
        """Write the policy, whole or not at all. The same policy gives the same bytes."""
        archive.save(path, _FORMAT, _VERSION, self.header, self.arrays)

    @property
    def config(self) -> EnvConfig:
        """The environments that it was trained on."""
        return environments_from_plain(self.header)

    def found_at(self, task: str) -> "Policy":
        """Return it with its task's file looked for elsewhere, see environments.found_at."""
        return replace(self, header=self.header | plain_environments(found_at(self.config, task)))

    @property
    def scale(self) -> ActionScale | None:
        """What its actions pass on their way to the environment; None for the Microduck."""
        if not isinstance(self.config, TaskConfig):
            return None
        return ActionScale(self.arrays["action.low"], self.arrays["action.high"])

    @property
    def offset_and_scale(self) -> tuple[Float32s, Float32s]:
        """What normalises an observation, see Normalizer."""
        normalizer = Normalizer(len(self.arrays["normalizer.mean"]))
        normalizer.mean = self.arrays["normalizer.mean"]
        normalizer.squares = self.arrays["normalizer.squares"]
        normalizer.count = int(self.arrays["normalizer.count"])
        return normalizer.offset_and_scale()

    def actor(self) -> "Actor":
        """Return what computes mean actions."""
        weights = [np.ascontiguousarray(self.arrays[f"actor.{k}.weight"].T) for k in LAYERS]
        return Actor(
            (*self.offset_and_scale, *weights, *(self.arrays[f"actor.{k}.bias"] for k in LAYERS)),
            self.scale,
        )


class Actor:
    """Computes a policy's mean actions."""

    def __init__(self, inputs: tuple[Float32s, ...], scale: ActionScale | None):
        self._inputs = inputs
        self._channels = len(inputs[0])
        self._actions = len(inputs[-1])
        self._scale = scale

    def __call__(self, obs: NDArray[Any]) -> Float32s:
        """Return the mean actions to pass to the environments.

        Args:
            obs: (n, channels) observations, taken as float32.

        Returns:
            (n, actions) float32.

        Raises:
            ValueError: they are not the observations that it was trained on.
        """
        if obs.shape != (len(obs), self._channels):
            raise ValueError(
                f"the policy was trained on observations (n, {self._channels}), got {obs.shape}: "
                "has the task changed since?"
            )
        actions = np.empty((len(obs), self._actions), np.float32)
        _mean_actions(*self._inputs, np.ascontiguousarray(obs, np.float32), actions)
        return actions if self._scale is None else self._scale(actions)


@compiled
def _mean_actions(offset, scale, w0, w1, w2, b0, b1, b2, obs, actions):  # type: ignore[no-untyped-def]
    """Compute each row by itself, always summing over a layer's inputs in their order."""
    x = np.empty_like(offset)
    first = np.empty_like(b0)
    second = np.empty_like(b1)
    for i in range(len(obs)):
        for k in range(len(x)):
            x[k] = min(max((obs[i, k] - offset[k]) * scale[k], -CLIP), CLIP)
        _layer(x, w0, b0, first)
        for k in range(len(first)):
            first[k] = np.tanh(first[k])
        _layer(first, w1, b1, second)
        for k in range(len(second)):
            second[k] = np.tanh(second[k])
        _layer(second, w2, b2, actions[i])


@compiled
def _layer(x, weight, bias, out):  # type: ignore[no-untyped-def]
    out[:] = bias
    for k in range(len(x)):
        for j in range(len(out)):
            out[j] += x[k] * weight[k, j]


def _check(arrays: Mapping[str, NDArray[Any]], limited: bool) -> None:
    """Raise KeyError or ValueError unless these are the arrays of a policy, and all finite.

    Args:
        arrays: the arrays.
        limited: whether limits of actions are among them.
    """
    inputs = arrays["actor.0.weight"].shape[1]
    sizes = (inputs, *(len(arrays[f"actor.{k}.bias"]) for k in LAYERS))
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {
        "normalizer.mean": ("float64", sizes[:1]),
        "normalizer.squares": ("float64", sizes[:1]),
        "normalizer.count": ("int64", ()),
        "log_std": ("float32", sizes[-1:]),
    }
    for network, outputs in (("actor", sizes[-1]), ("critic", 1)):
        ends = (*sizes[:-1], outputs)
        for k, inputs, size in zip(LAYERS, ends, ends[1:], strict=False):
            shapes[f"{network}.{k}.weight"] = ("float32", (size, inputs))
            shapes[f"{network}.{k}.bias"] = ("float32", (size,))
    for name, (dtype, shape) in shapes.items():
        array = arrays[name]
        if array.dtype != dtype or array.shape != shape:
            raise ValueError(f"{name!r} is {array.dtype} {array.shape}, expected {dtype} {shape}")
        if not np.isfinite(array).all():
            raise ValueError(f"{name!r} is not finite")
        if name in ("normalizer.squares", "normalizer.count") and (array < 0).any():
            raise ValueError(f"{name!r} is negative")
    if limited:
        for name in ("action.low", "action.high"):
            array = arrays[name]
            if array.dtype != np.float32 or array.shape != sizes[-1:]:
                raise ValueError(
                    f"{name!r} is {array.dtype} {array.shape}, expected float32 {sizes[-1:]}"
                )
        ActionScale(arrays["action.low"], arrays["action.high"])
