"""The arithmetic that decides the last bit, each on an input where the wrong way gives another."""

import math

import mujoco
import numpy as np
import pytest

from mujoco_vecenv.microduck import kernels, layout
from mujoco_vecenv.microduck.config import SCENES, MicroduckConfig
from mujoco_vecenv.microduck.draws import draw_sensor_noise, draw_sensor_noises
from mujoco_vecenv.microduck.layout import OBS_SCALE
from mujoco_vecenv.microduck.robot import Robot, scene_path

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
    assert kernels.mean_square(x) == np.mean(x**2)


def test_the_contracts_example_of_a_sum():
    x = np.array([1e16] + [1.0] * 7 + [-1e16] + [0.0] * 5)
    left_to_right = 0.0  # the builtin sum compensates since Python 3.12
    for value in x.tolist():
        left_to_right += value
    assert left_to_right == 0.0
    assert np.add.reduce(x) == 6.0


def test_mean_equals_numpys_on_many_inputs():
    rng = np.random.default_rng(0)
    for scale in 10.0 ** rng.uniform(-4, 4, (2000, 14)):
        x = rng.normal(size=14) * scale
        assert kernels.mean_square(x) == np.mean(x**2)


def a_square_that_pow_rounds_otherwise():
    """Return x whose x**2, by the C library's pow, is not x·x."""
    rng = np.random.default_rng(0)
    return next(x for x in rng.uniform(-5, 5, 100_000).tolist() if x**2 != x * x)


def one_step(height, version_weights):
    """Return the terms that the kernel computes for a trunk at this height."""
    task = np.zeros(1, kernels.TASK)
    task["stand_height"] = 0.12
    task["height_width"] = 0.03
    task["square"] = 2.0
    task["imu_quat"] = [1, 0, 0, 0]
    qpos = np.zeros((1, 7))
    qpos[0, 2:4] = height, 1.0
    facts = np.zeros((1, len(version_weights) + 4))
    kernels.finish_step(
        task,
        np.zeros(1, kernels.RUNNING),
        np.zeros((1, 1, 7)),
        qpos,
        np.zeros((1, 6)),
        np.zeros((1, 14)),
        np.zeros((1, 14, 7)),
        np.array(version_weights),
        np.zeros(1),
        np.zeros(1, bool),
        facts,
        np.zeros((1, 48), np.float32),
    )
    return facts[0]


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
    task = np.zeros(1, kernels.TASK)
    task["scale"] = OBS_SCALE
    task["velocities"] = layout.VELOCITIES
    task["gyro"] = layout.GYRO
    task["gravity"] = layout.GRAVITY
    task["previous_action"] = layout.PREVIOUS_ACTION
    task["imu_quat"] = [1, 0, 0, 0]
    task["qvel"] = 6
    qpos = np.zeros((1, 7))
    qpos[0, 3] = 1.0
    qvel = np.zeros((1, 7))
    qvel[0, 6] = value
    obs = np.zeros((1, 48), np.float32)
    running, noise = np.zeros(1, kernels.RUNNING), np.zeros((1, 1, 7))
    kernels.observe(task, running, noise, qpos, qvel, np.arange(1), obs)
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
    from mujoco_vecenv.microduck.batch import _task

    task = _task(duck, MicroduckConfig())[0]
    data = mujoco.MjData(duck.model)
    rng = np.random.default_rng(0)
    room = kernels.scratch()
    for k in range(1000):
        data.qpos[:7] = rng.normal(size=7)
        if k % 2:  # as after a step: a unit quaternion but for rounding
            data.qpos[3:7] /= np.linalg.norm(data.qpos[3:7])
        data.qvel[:6] = rng.normal(size=6) * 5
        mujoco.mj_forward(duck.model, data)
        kernels.read_trunk(task, data.qpos[None], data.qvel[None], 0, room)
        assert room.rotation.tobytes() == data.xmat[duck.trunk].tobytes()
        assert room.quat.tobytes() == data.sensor("orientation").data.tobytes()
        assert room.gyro.tobytes() == data.sensor("angular-velocity").data.tobytes()
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
        room = kernels.scratch()
        room.quat[:] = quat
        kernels.gravity_in_frame(room)
        assert room.gravity.tobytes() == expected.tobytes()


def test_noise_drawn_at_once_is_noise_drawn_one_by_one():
    duck = robot()
    one, other = np.random.default_rng(5), np.random.default_rng(5)
    at_once = draw_sensor_noises(one, duck, 300)
    one_by_one = np.stack([draw_sensor_noise(other, duck) for _ in range(300)])
    assert at_once.tobytes() == one_by_one.tobytes()
    assert one.bit_generator.state == other.bit_generator.state
    literal = np.random.default_rng(5)
    assert one_by_one[0].tolist() == [*literal.normal(0, 0.005, 3), *literal.normal(0, 0.001, 4)]
