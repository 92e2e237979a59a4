"""The compiled robot, and where its model keeps what the task reads."""

from pathlib import Path
from typing import Final

import mujoco
import numpy as np

from mujoco_vecenv.microduck.config import SCENES, STAND_HEIGHT, TIMESTEP, MicroduckConfig
from mujoco_vecenv.microduck.layout import JOINTS

_PACKAGED: Final = Path(__file__).parent / "models"

_SENSORS: Final = {
    "angular-velocity": mujoco.mjtSensor.mjSENS_GYRO,
    "orientation": mujoco.mjtSensor.mjSENS_FRAMEQUAT,
}


class ModelError(ValueError):
    """A model lacks something the Microduck's task needs."""


def scene_path(config: MicroduckConfig) -> Path:
    """Return the MJCF file of the configured variant.

    Raises:
        FileNotFoundError: the assets folder has no such file.
    """
    folder = _PACKAGED if config.assets_dir is None else Path(config.assets_dir)
    path = folder / SCENES[config.variant]
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} does not exist; variant {config.variant!r} needs a file "
            f"{SCENES[config.variant]!r} in the assets folder {str(folder)!r}"
        )
    return path


class Robot:
    """A compiled model with the addresses of everything the task reads.

    Attributes:
        model: the compiled model.
        path: the MJCF file it came from.
        stand: id of the STAND keyframe.
        trunk: id of the trunk's body.
        floor: id of the floor's geom.
        qpos: (14,) addresses of the actuated joints in qpos, in actuator order.
        qvel: (14,) addresses of those joints in qvel.
        default: (14,) their angles in STAND, rad.
        default_velocity: (14,) their velocities in STAND, rad/s.
        lo: (14,) their lower limits, rad.
        hi: (14,) their upper limits, rad.
        imu: id of the site that carries both sensors.
        gyro: where the gyro's 3 numbers begin in sensordata.
        orientation: where the orientation quaternion's 4 numbers begin in sensordata.
        gyro_sd: standard deviation of the gyro's noise, rad/s.
        orientation_sd: standard deviation of the noise on each quaternion element.
        noise_sd: (7,) both, for gyro and quaternion.

    Args:
        model: the model, compiled from `path` in full or lean.
        path: the MJCF file, for error messages.

    Raises:
        ModelError: the model lacks something, or does not stand at 0.12 m in STAND.
    """

    def __init__(self, model: mujoco.MjModel, path: Path):
        self.model = model
        self.path = path
        self.stand = self._id("keyframe", mujoco.mjtObj.mjOBJ_KEY, "STAND")
        self.trunk = self._id("body", mujoco.mjtObj.mjOBJ_BODY, "trunk_base")
        self.floor = self._id("geom", mujoco.mjtObj.mjOBJ_GEOM, "floor")
        joints = [self._id("joint", mujoco.mjtObj.mjOBJ_JOINT, name) for name in JOINTS]
        self._check_actuators(joints)
        if model.jnt_type[0] != mujoco.mjtJoint.mjJNT_FREE or model.jnt_bodyid[0] != self.trunk:
            raise ModelError(f"{path}: the first joint must be the free joint of trunk_base")

        if model.opt.timestep != TIMESTEP:
            raise ModelError(
                f"{path}: the timestep is {model.opt.timestep} s; it must be {TIMESTEP} s"
            )
        for flag, name in (("SENSOR", "sensor"), ("ACTUATION", "actuation")):
            if model.opt.disableflags & getattr(mujoco.mjtDisableBit, f"mjDSBL_{flag}"):
                raise ModelError(f"{path}: the flag {name!r} must not be disabled")

        if model.opt.enableflags & mujoco.mjtEnableBit.mjENBL_SLEEP:
            raise ModelError(f"{path}: the flag 'sleep' must not be enabled")

        self.qpos = model.jnt_qposadr[joints].astype(np.int64)
        self.qvel = model.jnt_dofadr[joints].astype(np.int64)
        self.default = model.key_qpos[self.stand][self.qpos].copy()
        self.default_velocity = model.key_qvel[self.stand][self.qvel].copy()
        self.lo, self.hi = model.jnt_range[joints].T.copy()

        height = float(model.key_qpos[self.stand][2])
        if abs(height - STAND_HEIGHT) > 1e-3:
            raise ModelError(
                f"{path}: keyframe STAND has the trunk at {height:.4f} m; "
                f"it must be at {STAND_HEIGHT} m within 1 mm"
            )

        gyro, orientation = (self._sensor(name, kind) for name, kind in _SENSORS.items())
        if model.sensor_objid[gyro] != model.sensor_objid[orientation]:
            raise ModelError(f"{path}: sensors {', '.join(_SENSORS)} must be on the same site")
        self.gyro = int(model.sensor_adr[gyro])
        self.orientation = int(model.sensor_adr[orientation])
        self.gyro_sd = float(model.sensor_noise[gyro])
        self.orientation_sd = float(model.sensor_noise[orientation])
        self.noise_sd = np.repeat([self.gyro_sd, self.orientation_sd], [3, 4])
        self.imu = int(model.sensor_objid[gyro])

    def _id(self, kind: str, objtype: mujoco.mjtObj, name: str) -> int:
        found = mujoco.mj_name2id(self.model, objtype, name)
        if found < 0:
            raise ModelError(f"{self.path}: the model has no {kind} named {name!r}")
        return int(found)

    def _sensor(self, name: str, kind: mujoco.mjtSensor) -> int:
        model = self.model
        sensor = self._id("sensor", mujoco.mjtObj.mjOBJ_SENSOR, name)
        if model.sensor_type[sensor] != kind:
            raise ModelError(f"{self.path}: sensor {name!r} must be a {kind.name[7:].lower()}")
        if (
            model.sensor_objtype[sensor] != mujoco.mjtObj.mjOBJ_SITE
            or model.site_bodyid[model.sensor_objid[sensor]] != self.trunk
        ):
            raise ModelError(f"{self.path}: sensor {name!r} must be at a site of trunk_base")
        for attribute in ("cutoff", "delay", "interval", "history"):
            if np.any(getattr(model, f"sensor_{attribute}")[sensor]):
                raise ModelError(f"{self.path}: sensor {name!r} must have no {attribute}")
        if model.sensor_refid[sensor] >= 0:
            raise ModelError(f"{self.path}: sensor {name!r} must be relative to the world")
        return sensor

    def _check_actuators(self, joints: list[int]) -> None:
        names = [self.model.actuator(i).name for i in range(self.model.nu)]
        for i, name in enumerate(JOINTS):
            if name not in names:
                raise ModelError(f"{self.path}: the model has no actuator named {name!r}")
            if names[i] != name:
                raise ModelError(f"{self.path}: actuator {i} is {names[i]!r}; it must be {name!r}")
            if (
                self.model.actuator_trntype[i] != mujoco.mjtTrn.mjTRN_JOINT
                or self.model.actuator_trnid[i, 0] != joints[i]
            ):
                raise ModelError(f"{self.path}: actuator {name!r} does not drive joint {name!r}")
        if len(names) != len(JOINTS):
            raise ModelError(
                f"{self.path}: actuator {names[len(JOINTS)]!r} is one too many; "
                f"the task drives {len(JOINTS)}"
            )
