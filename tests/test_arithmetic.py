"""The arithmetic that decides the last bit, each on an input where the wrong way gives another."""

import math
from functools import cache

import mujoco
import numpy as np
import pytest
from numba import njit

from mujoco_vecenv.engine.loops import call_source, compile_loop
from mujoco_vecenv.microduck import kernels
from mujoco_vecenv.microduck.config import SCENES, MicroduckConfig
from mujoco_vecenv.microduck.draws import draw_sensor_noise, draw_sensor_noises
from mujoco_vecenv.microduck.layout import OBS_SCALE
from mujoco_vecenv.microduck.robot import Robot, scene_path
from mujoco_vecenv.microduck.task import task_of

FAR = 1.0e8  # its square is 1e16, next to which a 1 is lost


def robot(variant="groundcontact"):
    path = scene_path(MicroduckConfig(variant=variant))
    return Robot(mujoco.MjModel.from_xml_path(str(path)), path)


def test_mean_sums_in_numpys_order():
    x = np.array([FAR] + [1.0] * 7 + [0.5] * 6)
    in_sequence = 0.0
    for value in x:
        in_sequence += value * value
    assert np.mean(x**2) != in_sequence / 14
    assert compiled(kernels.mean_square, x=x[None]) == np.mean(x**2)


def test_the_contracts_example_of_a_sum():
    x = np.array([1e16] + [1.0] * 7 + [-1e16] + [0.0] * 5)
    left_to_right = 0.0  # the builtin sum compensates since Python 3.12
    for value in x.tolist():
        left_to_right += value
    assert left_to_right == 0.0
    assert np.add.reduce(x) == 6.0


def test_mean_equals_numpys_on_many_inputs():
    rng = np.random.default_rng(0)
    compiled_mean = njit(kernels.mean_square)
    for scale in 10.0 ** rng.uniform(-4, 4, (2000, 14)):
        x = rng.normal(size=14) * scale
        assert compiled_mean(x) == np.mean(x**2)


def a_square_that_pow_rounds_otherwise():
    """Return x whose x**2, by the C library's pow, is not x·x."""
    rng = np.random.default_rng(0)
    return next(x for x in rng.uniform(-5, 5, 100_000).tolist() if x**2 != x * x)


def record(**values):
    """Return a record with the given numbers and arrays."""
    arrays = {name: np.asarray(value) for name, value in values.items()}
    array = np.zeros(1, [(name, a.dtype, a.shape) for name, a in arrays.items()])
    for name, value in arrays.items():
        array[name] = value
    return array


def compiled(function, **values):
    """Run a kernel as the engine compiles it, on one environment."""
    loop = compiled_loop(function, tuple(values))
    return loop(*values.values())


@cache
def compiled_loop(function, names):
    rows = {name: f"{name}[0]" for name in names}
    source = f"def loop({', '.join(names)}):\n    return {call_source('f', function, rows)}\n"
    return compile_loop("test", source, {"f": function})


def new(dtype):
    return np.zeros(1, dtype)


PARAMS = {
    "default": np.zeros(14),
    "qpos_ids": np.zeros(14, np.int64),
    "qvel_ids": np.full(14, 6),
    "imu_quat": np.array([1.0, 0, 0, 0]),
    "imu_turned": False,
    "scale": OBS_SCALE,
}
TERMS = ("upright", "height", "posture", "action_rate", "joint_vel", "effort")


def one_step(height, weights):
    """Return the terms that the kernel computes for a trunk at this height."""
    qpos = np.zeros((1, 7))
    qpos[0, 2:4] = height, 1.0
    info = new([(f"reward_{term}", float) for term in TERMS])
    compiled(
        kernels.reward_v1,
        qpos=qpos,
        qvel=np.zeros((1, 7)),
        ctrl=np.zeros((1, 14)),
        elapsed=np.zeros(1, np.int64),
        running=new(kernels.RUNNING),
        servos=np.zeros((1, 14, 7)),
        trunk=new(kernels.TRUNK),
        info=info,
        params=record(**PARAMS, weights=np.array(weights)),
    )
    return info[0].tolist()


def test_height_term_takes_the_c_librarys_pow():
    rng = np.random.default_rng(0)
    apart = 0
    for height in rng.uniform(0.0, 0.2, 20_000).tolist():
        off = (height - 0.12) / 0.03
        with_pow, with_product = math.exp(-(off**2)), math.exp(-(off * off))
        if with_pow != with_product:
            apart += 1
            assert one_step(height, [1.0] * 6)[1] == with_pow
    assert apart > 0


def test_pow_is_not_a_product_here():
    x = a_square_that_pow_rounds_otherwise()
    assert x**2 != x * x
    assert np.array([x])[0] * x == (np.array([x]) ** 2)[0]  # numpy's array square is a product


@pytest.mark.parametrize("low", [-30.0, -1.0])
def test_exp_is_the_c_librarys(low):
    for height in np.random.default_rng(1).uniform(-0.05, 0.3, 3000).tolist():
        off = (height - 0.12) / 0.03
        assert one_step(height, [1.0, low, 1.0, 1.0, 1.0, 1.0])[1] == low * math.exp(-(off**2))


def test_observation_scale_is_float32_widened():
    assert OBS_SCALE.dtype == np.float32
    assert float(OBS_SCALE[14]) == 0.05000000074505806
    value = next(
        v
        for v in np.random.default_rng(0).uniform(-20, 20, 1000)
        if np.float32(v * 0.05) != np.float32(v * np.float64(np.float32(0.05)))
    )
    assert write_velocity(value) == np.float32(value * np.float64(np.float32(0.05)))


def write_velocity(value):
    """Return what the kernel writes for a joint velocity."""
    qpos = np.zeros((1, 7))
    qpos[0, 3] = 1.0
    qvel = np.zeros((1, 7))
    qvel[0, 6] = value
    obs = np.zeros((1, 48), np.float32)
    compiled(
        kernels.observe,
        qpos=qpos,
        qvel=qvel,
        elapsed=np.zeros(1, np.int64),
        running=new(kernels.RUNNING),
        noise=np.zeros((1, 1, 7)),
        trunk=new(kernels.TRUNK),
        obs=obs,
        params=record(**PARAMS),
    )
    return obs[0, 14]


@pytest.mark.parametrize("variant", SCENES)
def test_trunk_and_imu_are_what_mujoco_computes(variant):
    duck = robot(variant)
    check_imu(duck)


@pytest.mark.parametrize("quat", [[0.6, 0.2, -0.7, 0.3], [1, 1e-6, 0, 0], [1, 1e-9, 0, 0]])
def test_a_turned_imu_is_what_mujoco_computes(quat):
    path = scene_path(MicroduckConfig())
    spec = mujoco.MjSpec.from_file(str(path))
    spec.site("imu").quat = quat
    check_imu(Robot(spec.compile(), path))


def check_imu(duck):
    data = mujoco.MjData(duck.model)
    rng = np.random.default_rng(0)
    trunk, elapsed = new(kernels.TRUNK), np.zeros(1, np.int64)
    params = record(**task_of(MicroduckConfig(), duck).params)
    for k in range(1000):
        data.qpos[:7] = rng.normal(size=7)
        if k % 2:  # as after a step: a unit quaternion but for rounding
            data.qpos[3:7] /= np.linalg.norm(data.qpos[3:7])
        data.qvel[:6] = rng.normal(size=6) * 5
        mujoco.mj_forward(duck.model, data)
        compiled(
            kernels.read_trunk,
            qpos=data.qpos[None],
            qvel=data.qvel[None],
            time=elapsed,
            trunk=trunk,
            params=params,
        )
        assert trunk["rotation"][0].tobytes() == data.xmat[duck.trunk].tobytes()
        assert trunk["quat"][0].tobytes() == data.sensor("orientation").data.tobytes()
        assert trunk["gyro"][0].tobytes() == data.sensor("angular-velocity").data.tobytes()
        assert data.xpos[duck.trunk, 2] == data.qpos[2]


def test_gravity_is_what_mujoco_computes():
    rng = np.random.default_rng(0)
    for k in range(3000):
        quat = rng.normal(size=4)
        if k % 3:
            quat /= np.linalg.norm(quat)
        if k % 3 == 2:
            quat += rng.normal(0, 1e-3, 4)
        expected, unit = np.empty(3), quat.copy()
        mujoco.mju_normalize4(unit)
        mujoco.mju_negQuat(unit, unit)
        mujoco.mju_rotVecQuat(expected, np.array([0.0, 0.0, -1.0]), unit)
        trunk = new(kernels.TRUNK)
        trunk["unit"] = quat
        compiled(kernels.gravity_in_frame, trunk=trunk)
        assert trunk["gravity"][0].tobytes() == expected.tobytes()


def test_noise_drawn_at_once_is_noise_drawn_one_by_one():
    duck = robot()
    one, other = np.random.default_rng(5), np.random.default_rng(5)
    at_once = draw_sensor_noises(one, duck, 300)
    one_by_one = np.stack([draw_sensor_noise(other, duck) for _ in range(300)])
    assert at_once.tobytes() == one_by_one.tobytes()
    assert one.bit_generator.state == other.bit_generator.state
    literal = np.random.default_rng(5)
    assert one_by_one[0].tolist() == [*literal.normal(0, 0.005, 3), *literal.normal(0, 0.001, 4)]
