"""An environment's whole state between two steps, as a value that any backend can go on from."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import mujoco
import numpy as np
from numpy.typing import NDArray

from mujoco_vecenv.engine.generators import check_rng
from mujoco_vecenv.microduck.config import MicroduckConfig
from mujoco_vecenv.microduck.draws import Episode
from mujoco_vecenv.microduck.episodes import check_episode, plain_config
from mujoco_vecenv.microduck.layout import ACTIONS, NOISE
from mujoco_vecenv.microduck.randomization import FACTORS, Factors

Snapshot = dict[str, NDArray[Any]]
"""n environments' states: arrays with one row each, and a `header` in JSON."""

_VERSION: Final = 2
_PHYSICS: Final = mujoco.mjtState.mjSTATE_INTEGRATION


_SHAPES: Final[dict[str, tuple[str, tuple[int | None, ...]]]] = {
    "physics": ("float64", (None,)),
    "t": ("int64", ()),
    "previous": ("float64", (ACTIONS,)),
    "delayed": ("float64", (None, ACTIONS)),
    "next_push": ("int64", ()),
    "rng": ("uint64", (6,)),
    "latency": ("int64", ()),
    "angles": ("float64", (ACTIONS,)),
    "velocities": ("float64", (ACTIONS,)),
    "pushes": ("int64", ()),
    "push_steps": ("int64", (None,)),
    "push_velocity": ("float64", (None, 2)),
    "sensor_noise": ("bool", ()),
    "noise_recorded": ("bool", ()),
    "noise": ("float64", (None, NOISE)),
    "randomized": ("bool", ()),
    "factors": ("float64", (FACTORS,)),
}
"""Array to its dtype and the shape of a row; None where that depends on the episodes."""
_NAMES: Final = frozenset(_SHAPES)


@dataclass(slots=True)
class EnvState:
    """One environment between two steps.

    Attributes:
        episode: what the running episode drew; its noise only if it was not drawn here.
        physics: (nstate,) MuJoCo's mjSTATE_INTEGRATION.
        t: control steps done.
        previous: (14,) the last action, clipped.
        delayed: (latency, 14) the actions on their way, oldest first.
        next_push: which push comes next.
        rng: (6,) uint64, the generator as it was once the episode was drawn. What the sensors'
            noise has drawn since follows from it and t.
    """

    episode: Episode
    physics: NDArray[np.float64]
    t: int
    previous: NDArray[np.float64]
    delayed: NDArray[np.float64]
    next_push: int
    rng: NDArray[np.uint64]


def physics_of(model: mujoco.MjModel, data: mujoco.MjData) -> NDArray[np.float64]:
    """Return a simulation's mjSTATE_INTEGRATION."""
    state = np.empty(mujoco.mj_stateSize(model, _PHYSICS))
    mujoco.mj_getState(model, data, state, _PHYSICS)
    return state


def set_physics(model: mujoco.MjModel, data: mujoco.MjData, state: NDArray[np.float64]) -> None:
    """Put a simulation into a state and compute what follows from it."""
    mujoco.mj_setState(model, data, state, _PHYSICS)
    mujoco.mj_forward(model, data)


def pack(states: list[EnvState], config: MicroduckConfig, model: str) -> Snapshot:
    """Return the states of n environments as arrays with n rows.

    `model` is the fingerprint of their model, see `model_digest`.

    Nothing but arrays: `numpy.savez(file, **snapshot)` writes it and `numpy.load(file)` reads it
    without running any code.
    """
    n = len(states)
    episodes = [state.episode for state in states]
    pushes = max([1, *(len(episode.push_steps) for episode in episodes)])
    delays = max([1, *(episode.latency for episode in episodes)])
    recorded = [episode.noise is not None for episode in episodes]
    snapshot: Snapshot = {
        "header": np.array(_header(n, config, model)),
        "physics": np.stack([state.physics for state in states]),
        "t": np.array([state.t for state in states], np.int64),
        "previous": np.stack([state.previous for state in states]),
        "delayed": np.zeros((n, delays, ACTIONS)),
        "next_push": np.array([state.next_push for state in states], np.int64),
        "rng": np.stack([state.rng for state in states]),
        "latency": np.array([episode.latency for episode in episodes], np.int64),
        "angles": np.stack([episode.angles for episode in episodes]),
        "velocities": np.stack([episode.velocities for episode in episodes]),
        "pushes": np.array([len(episode.push_steps) for episode in episodes], np.int64),
        "push_steps": np.full((n, pushes), -1, np.int64),
        "push_velocity": np.zeros((n, pushes, 2)),
        "sensor_noise": np.array([episode.sensor_noise for episode in episodes], np.bool_),
        "noise_recorded": np.array(recorded, np.bool_),
        # Empty, unless some noise came from a recorded episode instead of the generator.
        "noise": np.zeros((n, config.episode_steps + 1 if any(recorded) else 0, NOISE)),
        "randomized": np.array([episode.factors is not None for episode in episodes], np.bool_),
        "factors": np.full((n, FACTORS), np.nan),
    }
    for i, (state, episode) in enumerate(zip(states, episodes, strict=True)):
        k = len(episode.push_steps)
        snapshot["delayed"][i, : episode.latency] = state.delayed
        snapshot["push_steps"][i, :k] = episode.push_steps
        snapshot["push_velocity"][i, :k] = episode.push_velocity
        if episode.noise is not None:
            snapshot["noise"][i] = episode.noise
        if episode.factors is not None:
            snapshot["factors"][i] = episode.factors.as_vector()
    return snapshot


def unpack(
    snapshot: Mapping[str, Any], n: int, config: MicroduckConfig, model: str, nstate: int
) -> list[EnvState]:
    """Return the states in a snapshot, having checked that n such environments can take them.

    Raises:
        TypeError: the snapshot is no mapping.
        ValueError: it is of other environments, of another version, or damaged. The message names
            what does not fit.
    """
    if not isinstance(snapshot, Mapping):
        raise TypeError(f"a snapshot is a mapping from names to arrays, got {type(snapshot)}")
    if "header" not in snapshot:
        raise ValueError("this is no snapshot of mujoco-vecenv: it has no 'header'")
    _check_header(str(snapshot["header"]), n, config, model)
    try:
        arrays = {name: np.asarray(snapshot[name]) for name in snapshot if name in _NAMES}
    except Exception as error:  # whatever zip and zlib have to say of a damaged file
        raise ValueError(f"the snapshot is damaged: {error}") from error
    _check_arrays(arrays, n, config, nstate)
    states = [_state(arrays, i) for i in range(n)]
    for i, state in enumerate(states):
        check_episode(state.episode, config, f"snapshot, environment {i}")
    return states


def _state(arrays: Mapping[str, NDArray[Any]], i: int) -> EnvState:
    row = {name: array[i] for name, array in arrays.items()}
    k, latency = int(row["pushes"]), int(row["latency"])
    episode = Episode(
        Factors.from_vector(row["factors"]) if row["randomized"] else None,
        latency,
        row["angles"].copy(),
        row["velocities"].copy(),
        row["push_steps"][:k].copy(),
        row["push_velocity"][:k].copy(),
        bool(row["sensor_noise"]),
        row["noise"].copy() if row["noise_recorded"] else None,
    )
    return EnvState(
        episode,
        row["physics"].copy(),
        int(row["t"]),
        row["previous"].copy(),
        row["delayed"][:latency].copy(),
        int(row["next_push"]),
        row["rng"].copy(),
    )


def _header(n: int, config: MicroduckConfig, model: str) -> str:
    return json.dumps(
        {
            "format": "mujoco-vecenv snapshot",
            "version": _VERSION,
            "mujoco": mujoco.__version__,
            "n": n,
            "model": model,
            "config": plain_config(config),
        }
    )


def _check_header(text: str, n: int, config: MicroduckConfig, model: str) -> None:
    try:
        header = json.loads(text)
        theirs = header["config"]
        found = {name: header[name] for name in ("version", "mujoco", "n", "model")}
        theirs.items()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError("the snapshot's header is damaged") from error
    expected = {"version": _VERSION, "mujoco": mujoco.__version__, "n": n}
    ours = plain_config(config)
    for where, mine, other in (
        ("", expected, found),
        ("config: ", ours, theirs),
        ("", {"model": model}, found),
    ):
        for name, value in mine.items():
            if other.get(name) != value:
                raise ValueError(
                    f"the snapshot does not fit: {where}{name} is {other.get(name)!r} in it and "
                    f"{value!r} here"
                )


def _check_arrays(
    arrays: Mapping[str, NDArray[Any]], n: int, config: MicroduckConfig, nstate: int
) -> None:
    """Raise ValueError at the first array that no snapshot of n such environments has."""
    steps = config.episode_steps
    shapes = {**_SHAPES, "physics": ("float64", (nstate,))}
    for name, (dtype, shape) in shapes.items():
        if name not in arrays:
            raise ValueError(f"the snapshot is damaged: it has no {name!r}")
        array = arrays[name]
        fits = array.ndim == 1 + len(shape) and all(
            size is None or size == actual
            for size, actual in zip((n, *shape), array.shape, strict=True)
        )
        if array.dtype != dtype or not fits:
            raise ValueError(
                f"the snapshot does not fit: {name!r} is {array.dtype} {array.shape}, "
                f"expected {dtype} {(n, *shape)}"
            )
    limits = {
        "t": steps - 1,
        "latency": min(arrays["delayed"].shape[1], steps - 1),
        "pushes": min(arrays["push_steps"].shape[1], arrays["push_velocity"].shape[1]),
        "next_push": arrays["push_steps"].shape[1],
    }
    for name, most in limits.items():
        if ((arrays[name] < 0) | (arrays[name] > most)).any():
            raise ValueError(f"the snapshot is damaged: {name!r} is not within 0 … {most}")
    try:
        check_rng(arrays["rng"])
    except ValueError as error:
        raise ValueError(f"the snapshot is damaged: {error}") from error
    if (arrays["next_push"] > arrays["pushes"]).any():
        raise ValueError("the snapshot is damaged: 'next_push' is beyond its 'pushes'")
    if (np.abs(arrays["previous"]) > 1).any() or (np.abs(arrays["delayed"]) > 1).any():
        raise ValueError("the snapshot is damaged: 'previous' and 'delayed' must be within [-1, 1]")
    recompute = arrays["factors"][arrays["randomized"], -1]
    if not np.isin(recompute, (0.0, 1.0)).all():
        raise ValueError("the snapshot is damaged: the last of 'factors' must be 0 or 1")
    if arrays["noise_recorded"].any() and arrays["noise"].shape[1] != steps + 1:
        raise ValueError(f"the snapshot is damaged: 'noise' needs {steps + 1} rows")
    for name in ("physics", "previous", "delayed"):
        if not np.isfinite(arrays[name]).all():
            raise ValueError(f"the snapshot is damaged: {name!r} is not finite")
