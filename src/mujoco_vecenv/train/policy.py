"""A trained policy as plain arrays: the observation normaliser and the networks' layers.

Acting needs no PyTorch. The mean action of an observation is the same to the last bit however many
observations are passed together, so that one environment evaluates as a hundred do.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mujoco_vecenv import archive
from mujoco_vecenv.checks import check_integer
from mujoco_vecenv.engine.compiled import compiled
from mujoco_vecenv.microduck.config import MicroduckConfig
from mujoco_vecenv.microduck.episodes import config_from_plain
from mujoco_vecenv.microduck.layout import ACTIONS, OBSERVATIONS

FILE: Final = "policy.npz"
"""Name of the policy in a run's folder."""
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
            `actor.K.bias` for K in LAYERS, likewise `critic`; `log_std`.
        header: `config` of the environments, `ppo` of the algorithm, `seed`, `steps` of training.
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
            policy.config  # noqa: B018 - checks it
            check_integer("steps", header["steps"], 0)
            _check(arrays)
        except Exception as error:  # whatever a foreign header leads to
            raise ValueError(f"{path} is damaged: {error!r}") from error
        return policy

    def save(self, path: str | Path) -> None:
        """Write the policy, whole or not at all. The same policy gives the same bytes."""
        archive.save(path, _FORMAT, _VERSION, self.header, self.arrays)

    @property
    def config(self) -> MicroduckConfig:
        """The environments that it was trained on."""
        return config_from_plain(self.header["config"])

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
            (*self.offset_and_scale, *weights, *(self.arrays[f"actor.{k}.bias"] for k in LAYERS))
        )


class Actor:
    """Computes a policy's mean actions."""

    def __init__(self, inputs: tuple[Float32s, ...]):
        self._inputs = inputs
        self._actions = len(inputs[-1])

    def __call__(self, obs: Float32s) -> Float32s:
        """Return the (n, actions) mean actions for (n, channels) observations."""
        actions = np.empty((len(obs), self._actions), np.float32)
        _mean_actions(*self._inputs, np.ascontiguousarray(obs), actions)
        return actions


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


def _check(arrays: Mapping[str, NDArray[Any]]) -> None:
    """Raise KeyError or ValueError unless these are the arrays of a policy, and all finite."""
    sizes = (OBSERVATIONS, *(len(arrays[f"actor.{k}.bias"]) for k in LAYERS[:-1]), ACTIONS)
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
