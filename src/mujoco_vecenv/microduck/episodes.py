"""Episodes as values: checked before they are injected, saved to a file, loaded from it."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from mujoco_vecenv import archive
from mujoco_vecenv.checks import check_integer, check_number, check_switch
from mujoco_vecenv.microduck.config import MicroduckConfig
from mujoco_vecenv.microduck.draws import Episode
from mujoco_vecenv.microduck.layout import ACTIONS, NOISE
from mujoco_vecenv.microduck.randomization import FACTORS, SERVO, DRConfig, Factors

_FORMAT: Final = "mujoco-vecenv episode"
_VERSION: Final = 1


@dataclass
class Recording:
    """An episode with what is needed to run it again.

    Attributes:
        episode: what it drew.
        config: the environment's configuration.
        actions: (T, 14) the actions taken, T at most episode_steps; empty if they were not kept.
    """

    episode: Episode
    config: MicroduckConfig
    actions: NDArray[np.float64]


def check_episode(episode: Episode, config: MicroduckConfig, name: str = "episode") -> None:
    """Refuse an episode that no environment of this configuration can run.

    Args:
        episode: the episode.
        config: the environment's configuration.
        name: what the errors call it.

    Raises:
        TypeError, ValueError: a field is of the wrong type, length or range; the message names it.
    """
    if not isinstance(episode, Episode):
        raise TypeError(f"{name} must be an Episode, got {episode!r}")
    steps = config.episode_steps
    latency = check_integer(f"{name}.latency", episode.latency, 0)
    if latency >= steps:
        raise ValueError(f"{name}.latency={latency} must be below episode_steps={steps}")
    check_switch(f"{name}.sensor_noise", episode.sensor_noise)
    _check_array(f"{name}.angles", episode.angles, (ACTIONS,))
    _check_array(f"{name}.velocities", episode.velocities, (ACTIONS,))
    steps_given = episode.push_steps
    if (
        not isinstance(steps_given, np.ndarray)
        or steps_given.ndim != 1
        or steps_given.dtype.kind != "i"
    ):
        raise TypeError(f"{name}.push_steps must be a (k,) array of integers")
    pushes = steps_given.shape
    _check_array(f"{name}.push_velocity", episode.push_velocity, (*pushes, 2))
    for before, after in zip(episode.push_steps, episode.push_steps[1:], strict=False):
        if before >= after:
            raise ValueError(f"{name}.push_steps must ascend, got {after} after {before}")
    for step in episode.push_steps:
        if not 0 <= step < steps:
            raise ValueError(f"{name}.push_steps must be within 0 … {steps - 1}, got {step}")
    if episode.noise is not None:
        if not episode.sensor_noise:
            raise ValueError(f"{name}.noise is given, but {name}.sensor_noise is False")
        _check_array(f"{name}.noise", episode.noise, (steps + 1, NOISE))
    if episode.factors is not None:
        _check_factors(f"{name}.factors", episode.factors)


def _check_array(name: str, value: Any, shape: tuple[int, ...]) -> None:
    try:
        array = np.asarray(value)
    except ValueError as error:  # rows of different lengths
        raise ValueError(f"{name} must be float64 of shape {shape}: {error}") from error
    if array.dtype != np.float64 or array.shape != shape:
        raise ValueError(
            f"{name} must be float64 of shape {shape}, got {array.dtype} of {array.shape}"
        )
    if not np.isfinite(array).all():
        where = tuple(int(k) for k in np.argwhere(~np.isfinite(array))[0])
        raise ValueError(f"{name} must be finite, got {array[where]} at {where}")


def _check_factors(name: str, factors: Factors) -> None:
    if not isinstance(factors, Factors):
        raise TypeError(f"{name} must be Factors or None, got {factors!r}")
    if factors.servo is not None:
        _check_array(f"{name}.servo", factors.servo, (len(SERVO),))
        for parameter, value in zip(SERVO, factors.servo, strict=True):
            if value < 0:
                raise ValueError(f"{name}.servo: {parameter} must be 0 or more, got {value}")
    check_switch(f"{name}.recompute_constants", factors.recompute_constants)
    for field, above in (("mass_scale", True), ("floor_friction", False)):
        value = getattr(factors, field)
        if value is None:
            continue
        number = check_number(f"{name}.{field}", value)
        if number < 0 or (above and number == 0):
            raise ValueError(f"{name}.{field} must be positive, got {value!r}")


def save_recording(path: str | Path, recording: Recording) -> None:
    """Write a recording to a file that loads without running code (.npz).

    Raises:
        TypeError, ValueError: the episode or the actions do not fit the configuration.
    """
    episode, config = recording.episode, recording.config
    check_episode(episode, config)
    if episode.sensor_noise and episode.noise is None:
        raise ValueError("episode.noise is missing: take the episode from record()")
    actions = _check_actions(recording.actions, config)
    header = {
        "mujoco": mujoco.__version__,
        "config": plain_config(config),
        "latency": int(episode.latency),
        "sensor_noise": bool(episode.sensor_noise),
    }
    arrays: archive.Arrays = {
        "angles": episode.angles,
        "velocities": episode.velocities,
        "push_steps": episode.push_steps,
        "push_velocity": episode.push_velocity,
        "actions": actions,
    }
    if episode.noise is not None:
        arrays["noise"] = episode.noise
    if episode.factors is not None:
        arrays["factors"] = episode.factors.as_vector()
    archive.save(path, _FORMAT, _VERSION, header, arrays)


def load_recording(path: str | Path) -> Recording:
    """Read a recording.

    The models are those packaged here, or those of MUJOCO_VECENV_ASSETS.

    Raises:
        ValueError: the file is no recording, of another version, or damaged.
    """
    header, arrays = archive.load(path, _FORMAT, _VERSION)
    try:
        config = config_from_plain(header["config"])
        factors = arrays.get("factors")
        if factors is not None:
            _check_factor_vector(factors)
        episode = Episode(
            None if factors is None else Factors.from_vector(factors),
            header["latency"],
            arrays["angles"],
            arrays["velocities"],
            arrays["push_steps"],
            arrays["push_velocity"],
            header["sensor_noise"],
            arrays.get("noise"),
        )
        check_episode(episode, config)
        actions = _check_actions(arrays["actions"], config)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    return Recording(episode, config, actions)


def plain_config(config: MicroduckConfig) -> dict[str, Any]:
    """Return a configuration as JSON's values, but for where its models lie on this machine."""
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config), default=str))
    del plain["assets_dir"]
    return plain


def config_from_plain(plain: Mapping[str, Any]) -> MicroduckConfig:
    """Return the configuration that `plain_config` made plain.

    Raises:
        TypeError, ValueError: it was not made so.
    """
    dr = plain.get("dr")
    return MicroduckConfig.from_keywords({**plain, "dr": None if dr is None else DRConfig(**dr)})


def _check_actions(actions: ArrayLike, config: MicroduckConfig) -> NDArray[np.float64]:
    given = np.asarray(actions)
    if given.dtype.kind not in "fiu" or given.ndim != 2 or given.shape[1] != ACTIONS:
        raise ValueError(
            f"actions must be real numbers of shape (T, {ACTIONS}), got {given.dtype} of "
            f"{given.shape}"
        )
    array = given.astype(np.float64)
    if len(array) > config.episode_steps:
        raise ValueError(
            f"actions: {len(array)} are more than episode_steps={config.episode_steps}"
        )
    if not np.isfinite(array).all():
        raise ValueError("actions must be finite")
    return array


def _check_factor_vector(array: NDArray[Any]) -> None:
    if array.dtype != np.float64 or array.shape != (FACTORS,) or array[-1] not in (0, 1):
        raise ValueError(f"factors must be {FACTORS} float64, the last of them 0 or 1")
