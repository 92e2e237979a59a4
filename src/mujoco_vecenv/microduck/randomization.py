"""Domain randomisation: what is drawn for an episode's physics, and how a model takes it on."""

import copy
from dataclasses import dataclass, fields
from typing import Any, Final

import mujoco
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from mujoco_vecenv.checks import check_integer, check_range, check_switch
from mujoco_vecenv.microduck.layout import JOINTS

SERVO: Final = ("damping", "frictionloss", "armature", "kp", "forcerange")
"""A servo's five parameters in the order they are drawn: N·m·s/rad, N·m, kg·m², N·m/rad, N·m."""

SERVO_FITS: Final = {
    "chosen_actuator": (0.053, 0.0048, 0.0018, 0.55, 0.96),
    "chosen_actuator_old": (0.048, 0.006, 0.002, 0.52, 0.91),
    "chosen_actuator_new": (0.041, 0.032, 0.002, 0.386, 0.67),
    "chosen_actuator_antoine": (0.044, 0.013, 0.0017, 0.43, 0.75),
}
"""Four published identifications of the same XL330 servo (microduck_rl); the first is nominal."""

FACTORS: Final = len(SERVO) + 3
"""Length of a vector of factors."""

SERVO_LO: Final = np.min(list(SERVO_FITS.values()), axis=0)
SERVO_HI: Final = np.max(list(SERVO_FITS.values()), axis=0)


@dataclass(frozen=True)
class DRConfig:
    """Which parts of the physics are drawn for each episode, and from which ranges.

    Every range is drawn uniformly. None draws nothing and leaves the environment's own value.

    `recompute_constants` decides whether the constants that MuJoCo derives from masses and
    inertias when it compiles a model (mean inertia, inverse weights …) follow the drawn ones.
    Leave it off to train on exactly the published environment, which does not recompute them; the
    constants only scale how soft contacts and joint limits are. Turn it on to make the physics of
    each episode that of a model compiled with the drawn masses.

    Attributes:
        actuator: draw the servos' five parameters within the published fits.
        mass_scale: factor on every body's mass and inertia.
        floor_friction: factor on the floor's sliding friction.
        latency: control steps between an action and its effect, both ends included.
        init_noise: the initial noise's half-width, rad.
        sensor_noise: turn the sensors' noise on.
        recompute_constants: run mj_setConst on every episode's model.

    Raises:
        TypeError, ValueError: a value of the wrong type or outside its range.
    """

    actuator: bool = True
    mass_scale: tuple[float, float] | None = (0.85, 1.15)
    floor_friction: tuple[float, float] | None = (0.6, 1.2)
    latency: tuple[int, int] | None = (0, 2)
    init_noise: tuple[float, float] | None = (0.02, 0.3)
    sensor_noise: bool = True
    recompute_constants: bool = False

    def __post_init__(self) -> None:
        for name in ("actuator", "sensor_noise", "recompute_constants"):
            object.__setattr__(self, name, check_switch(f"dr: {name}", getattr(self, name)))
        for name in ("mass_scale", "floor_friction", "init_noise", "latency"):
            value = getattr(self, name)
            if value is None:
                continue
            low, high = check_range(f"dr: {name}", value, 0)
            if name == "mass_scale" and low == 0:
                raise ValueError(f"dr: mass_scale must be above 0, got {value!r}")
            if name == "latency":
                low, high = (check_integer("dr: latency", steps) for steps in value)
            object.__setattr__(self, name, (low, high))

    @classmethod
    def none(cls) -> "DRConfig":
        """Return a configuration that draws nothing: the environment as it is without any."""
        return cls(
            actuator=False,
            mass_scale=None,
            floor_friction=None,
            latency=None,
            init_noise=None,
            sensor_noise=False,
        )

    @classmethod
    def of(cls, dr: Any) -> "DRConfig | None":
        """Return the configuration that a value of the keyword `dr` stands for.

        Args:
            dr: None or False, True, a DRConfig, a DomainRandomizer, or an object with the
                attributes of a DRConfig, itself or as its `config` or `cfg`.

        Raises:
            TypeError: any other value; the message names the attribute it lacks.
        """
        if dr is None or dr is False:
            return None
        if dr is True:
            return cls()
        if isinstance(dr, cls):
            return dr
        source = getattr(dr, "config", None) or getattr(dr, "cfg", None) or dr
        values = {}
        for f in fields(cls):
            if hasattr(source, f.name):
                values[f.name] = getattr(source, f.name)
            elif f.name != "recompute_constants":  # ours alone
                raise TypeError(
                    f"dr must be True, False, None, a DRConfig, or an object with its attributes; "
                    f"{dr!r} has no {f.name!r}"
                )
        return cls(**values)


@dataclass(frozen=True, eq=False)
class Factors:
    """What an episode's physics is, relative to the untouched model. None leaves a part alone.

    Attributes:
        servo: (5,) parameters of all 14 servos, in the order of SERVO.
        mass_scale: factor on every body's mass and inertia.
        floor_friction: factor on the floor's sliding friction.
        recompute_constants: whether mj_setConst follows.
    """

    servo: NDArray[np.float64] | None
    mass_scale: float | None
    floor_friction: float | None
    recompute_constants: bool = False

    def as_vector(self) -> NDArray[np.float64]:
        """Return (8,): servo, mass_scale, floor_friction, recompute; NaN for what is left alone."""
        servo = [np.nan] * len(SERVO) if self.servo is None else self.servo
        scalars = [np.nan if x is None else x for x in (self.mass_scale, self.floor_friction)]
        return np.array([*servo, *scalars, self.recompute_constants], np.float64)

    @classmethod
    def from_vector(cls, vector: NDArray[np.float64]) -> "Factors":
        """Return the factors that `as_vector` returned."""
        servo = vector[: len(SERVO)]
        mass_scale, floor_friction, recompute = vector[len(SERVO) :].tolist()
        return cls(
            None if np.isnan(servo).all() else servo.copy(),
            None if np.isnan(mass_scale) else mass_scale,
            None if np.isnan(floor_friction) else floor_friction,
            bool(recompute),
        )


class DomainRandomizer:
    """Draws factors, and gives a model the physics they stand for.

    Factors always apply to the model as it was when this object was made: nothing compounds.

    Args:
        model: a Microduck's compiled model.
        config: the ranges; as for the keyword `dr`.
    """

    def __init__(self, model: mujoco.MjModel, config: Any = True):
        self.model = model
        self.config = DRConfig.of(config) or DRConfig.none()
        self._pristine = copy.copy(model)
        self._changed: list[str] = []
        self._dofs = [int(model.joint(name).dofadr[0]) for name in JOINTS]
        self._floor = int(model.geom("floor").id)

    def sample(self, rng: Generator) -> Factors:
        """Draw an episode's factors from the ranges."""
        return draw_factors(rng, self.config)

    def values(self, factors: Factors) -> dict[str, NDArray[np.float64]]:
        """Return the model's arrays that factors change, by name, with their new values.

        Constants that mj_setConst would derive are not among them.
        """
        nominal = self._pristine
        values = {}
        if factors.servo is not None:
            damping, frictionloss, armature, kp, force = factors.servo
            for name, value in (
                ("dof_damping", damping),
                ("dof_frictionloss", frictionloss),
                ("dof_armature", armature),
            ):
                values[name] = getattr(nominal, name).copy()
                values[name][self._dofs] = value
            values["actuator_gainprm"] = nominal.actuator_gainprm.copy()
            values["actuator_gainprm"][:, 0] = kp
            values["actuator_biasprm"] = nominal.actuator_biasprm.copy()
            values["actuator_biasprm"][:, 1] *= kp / nominal.actuator_gainprm[:, 0]
            values["actuator_forcerange"] = np.tile([-force, force], (nominal.nu, 1))
        if factors.mass_scale is not None:
            values["body_mass"] = nominal.body_mass * factors.mass_scale
            values["body_inertia"] = nominal.body_inertia * factors.mass_scale
        if factors.floor_friction is not None:
            values["geom_friction"] = nominal.geom_friction.copy()
            values["geom_friction"][self._floor, 0] *= factors.floor_friction
        return values

    def apply(self, factors: Factors) -> None:
        """Give the model the physics of an episode, whatever it had before."""
        self.restore()
        values = self.values(factors)
        for name, value in values.items():
            getattr(self.model, name)[:] = value
        self._changed = list(values)
        if factors.recompute_constants:
            mujoco.mj_setConst(self.model, mujoco.MjData(self.model))
            self._changed = _arrays(self.model)

    def restore(self) -> None:
        """Make the model equal, in every array, to what it was when this object was made."""
        for name in self._changed:
            getattr(self.model, name)[:] = getattr(self._pristine, name)
        self._changed = []


def draw_factors(rng: Generator, config: DRConfig) -> Factors:
    """Draw an episode's factors: the servos' five in one call, then mass, then friction."""
    servo = rng.uniform(SERVO_LO, SERVO_HI) if config.actuator else None
    mass_scale = _draw(rng, config.mass_scale)
    floor_friction = _draw(rng, config.floor_friction)
    return Factors(servo, mass_scale, floor_friction, config.recompute_constants)


def _draw(rng: Generator, ends: tuple[float, float] | None) -> float | None:
    return None if ends is None else float(rng.uniform(*ends))


def _arrays(model: mujoco.MjModel) -> list[str]:
    """Return the names of all of a model's arrays."""
    return [
        name
        for name in dir(model)
        if not name.startswith("_") and isinstance(getattr(model, name), np.ndarray)
    ]
