"""The task's arithmetic over one environment, for the engine to compile and loop.

Every function does what the reference does with numpy, in the same order of operations, so that
every double comes out the same to the last bit. No fast-math and no fused multiply-add: both round
differently from numpy.

What the arguments are is said in `mujoco_vecenv.engine.task`; the columns are those of
`mujoco_vecenv.microduck.task`.
"""

import math

import numpy as np

from mujoco_vecenv.engine.native import (
    mul_mat_t_vec3,
    mul_mat_vec3,
    mul_quat,
    neg_quat,
    normalize4,
    quat_to_mat,
    rot_vec_quat,
)
from mujoco_vecenv.engine.numpy_bits import square
from mujoco_vecenv.microduck.config import FALL_HEIGHT, STAND_HEIGHT
from mujoco_vecenv.microduck.layout import (
    ACTIONS,
    ANGLES,
    GRAVITY,
    GYRO,
    PREVIOUS_ACTION,
    VELOCITIES,
)
from mujoco_vecenv.microduck.rewards import HEIGHT_WIDTH

RUNNING = np.dtype(
    [
        ("previous", np.float64, ACTIONS),  # the last action, clipped to [-1, 1]
        ("action_rate", np.float64),  # mean square of its difference from the one before
        ("latency", np.int64),  # control steps between an action and its effect
        ("next_push", np.int64),  # which push comes next
        ("pushed", np.bool_),  # whether this step gave a push
        ("noisy", np.bool_),  # whether the episode has sensor noise
    ],
    align=True,
)
"""A running episode, next to its MuJoCo state."""

TRUNK = np.dtype(
    [
        ("time", np.int64),  # control steps done when it was read
        ("rotation", np.float64, 9),  # of the trunk
        ("quat", np.float64, 4),  # the sensor `orientation`
        ("gyro", np.float64, 3),  # the sensor `angular-velocity`, rad/s
        ("gravity", np.float64, 3),  # world -z in the frame of `unit`
        # Room for numbers in between.
        ("joints", np.float64, ACTIONS),
        ("unit", np.float64, 4),
        ("local", np.float64, 3),
        ("world", np.float64, 3),
        ("matrix", np.float64, 9),
    ],
    align=True,
)
"""What follows from the trunk's state."""


def control(
    action, qvel, ctrl, elapsed, running, delayed, push_steps, push_velocity, trunk, params
):
    """Turn an action into servo targets, and give the push that is due.

    `delayed` is a ring of the actions on their way, of which the episode uses as many slots as its
    latency. `push_steps` is when pushes come, -1 after the last.
    """
    change = trunk.joints
    slot = elapsed % running.latency if running.latency > 0 else -1
    for j in range(ACTIONS):
        a = min(max(action[j], -1.0), 1.0)
        change[j] = a - running.previous[j]
        running.previous[j] = a
        if slot >= 0:
            delayed[slot, j], a = a, delayed[slot, j]
        target = params.default[j] + params.action_scale * a
        ctrl[j] = min(max(target, params.lo[j]), params.hi[j])
    running.action_rate = mean_square(change)
    k = running.next_push
    running.pushed = k < len(push_steps) and push_steps[k] == elapsed
    if running.pushed:
        qvel[0] += push_velocity[k, 0]
        qvel[1] += push_velocity[k, 1]
        running.next_push = k + 1


def reward_v1(qpos, qvel, ctrl, elapsed, running, servos, trunk, info, params):
    """Return the first version's reward: its terms, left to right from 0.

    `servos` has a row per servo: gear, gain, the bias's three coefficients, least and greatest
    force, N·m.
    """
    read_trunk(qpos, qvel, elapsed + 1, trunk, params)
    numbers, weights = trunk.joints, params.weights
    off = (qpos[2] - STAND_HEIGHT) / HEIGHT_WIDTH
    info.reward_upright = weights[0] * max(0.0, trunk.rotation[8])
    info.reward_height = weights[1] * math.exp(-square(off))
    for j in range(ACTIONS):
        numbers[j] = qpos[params.qpos_ids[j]] - params.default[j]
    info.reward_posture = weights[2] * mean_square(numbers)
    info.reward_action_rate = weights[3] * running.action_rate
    read_velocities(qvel, numbers, params)
    info.reward_joint_vel = weights[4] * mean_square(numbers)
    for j in range(ACTIONS):
        length = servos[j, 0] * qpos[params.qpos_ids[j]]
        velocity = servos[j, 0] * qvel[params.qvel_ids[j]]
        bias = servos[j, 2] + servos[j, 3] * length + servos[j, 4] * velocity
        force = servos[j, 1] * ctrl[j] + bias
        numbers[j] = min(max(force, servos[j, 5]), servos[j, 6])
    info.reward_effort = weights[5] * mean_square(numbers)
    reward = 0.0 + info.reward_upright + info.reward_height + info.reward_posture
    return reward + info.reward_action_rate + info.reward_joint_vel + info.reward_effort


def reward_v2(qpos, qvel, elapsed, running, trunk, info, params):
    """Return the second version's reward: its terms, left to right from 0."""
    read_trunk(qpos, qvel, elapsed + 1, trunk, params)
    weights = params.weights
    info.reward_upright = weights[0] * max(0.0, trunk.rotation[8])
    info.reward_height = weights[1] * min(max(qpos[2] / STAND_HEIGHT, 0.0), 1.0)
    info.reward_action_rate = weights[2] * running.action_rate
    read_velocities(qvel, trunk.joints, params)
    info.reward_joint_vel = weights[3] * mean_square(trunk.joints)
    reward = 0.0 + info.reward_upright + info.reward_height
    return reward + info.reward_action_rate + info.reward_joint_vel


def describe(qpos, qvel, elapsed, running, trunk, info, params):
    """Tell height and tilt of the trunk, whether it was pushed, and the time."""
    if elapsed == 0 or trunk.time != elapsed:  # in a step the reward has read the trunk
        read_trunk(qpos, qvel, elapsed, trunk, params)
    info.trunk_height = qpos[2]
    info.upright_cos = trunk.rotation[8]
    info.fallen = qpos[2] < FALL_HEIGHT
    info.pushed = running.pushed
    info.t = elapsed


def observe(qpos, qvel, elapsed, running, noise, trunk, obs, params):
    """Write the observation. `noise` has a row for each observation of the episode."""
    for j in range(ACTIONS):
        angle = qpos[params.qpos_ids[j]] - params.default[j]
        obs[ANGLES + j] = angle * params.scale[ANGLES + j]
        obs[VELOCITIES + j] = qvel[params.qvel_ids[j]] * params.scale[VELOCITIES + j]
        obs[PREVIOUS_ACTION + j] = running.previous[j] * params.scale[PREVIOUS_ACTION + j]
    frame = trunk.unit
    for j in range(4):
        frame[j] = trunk.quat[j] + noise[elapsed, 3 + j] if running.noisy else trunk.quat[j]
    gravity_in_frame(trunk)
    for j in range(3):
        gyro = trunk.gyro[j] + noise[elapsed, j] if running.noisy else trunk.gyro[j]
        obs[GYRO + j] = gyro * params.scale[GYRO + j]
        obs[GRAVITY + j] = trunk.gravity[j] * params.scale[GRAVITY + j]


def read_trunk(qpos, qvel, time, trunk, params):
    """Compute what MuJoCo computes for the trunk and the sensors on it at a state.

    The trunk hangs on a free joint, so its pose and what an IMU fixed to it reads follow from that
    joint's 13 numbers alone. Computing just that spares every step MuJoCo's position and velocity
    stages of the whole robot at the new state, about a twentieth of its physics. The functions and
    their order are those of mj_kinematics, mj_comVel and the sensors framequat and gyro.
    """
    trunk.time = time
    unit, local = trunk.unit, trunk.local
    for j in range(4):
        unit[j] = qpos[3 + j]
    for j in range(3):
        local[j] = qvel[3 + j]
    normalize4(unit)
    quat_to_mat(trunk.rotation, unit)
    mul_quat(trunk.quat, unit, params.imu_quat)
    mul_mat_vec3(trunk.world, trunk.rotation, local)
    if params.imu_turned:
        quat_to_mat(trunk.matrix, trunk.quat)
        mul_mat_t_vec3(trunk.gyro, trunk.matrix, trunk.world)
    else:
        mul_mat_t_vec3(trunk.gyro, trunk.rotation, trunk.world)


def gravity_in_frame(trunk):
    """Write world -z in the frame that `trunk.unit` orients, to `trunk.gravity`."""
    unit, down = trunk.unit, trunk.local
    down[0], down[1], down[2] = 0.0, 0.0, -1.0
    normalize4(unit)
    neg_quat(unit, unit)
    rot_vec_quat(trunk.gravity, down, unit)


def read_velocities(qvel, out, params):
    """Write the joints' velocities in actuator order, rad/s."""
    for j in range(ACTIONS):
        out[j] = qvel[params.qvel_ids[j]]


def mean_square(x):
    """Return the mean of x² over 14 numbers, summed in the order of numpy's pairwise summation.

    Below 128 numbers numpy keeps eight partial sums, joins them as a tree and adds the rest.
    """
    total = ((x[0] * x[0] + x[1] * x[1]) + (x[2] * x[2] + x[3] * x[3])) + (
        (x[4] * x[4] + x[5] * x[5]) + (x[6] * x[6] + x[7] * x[7])
    )
    for j in range(8, ACTIONS):
        total += x[j] * x[j]
    return total / ACTIONS
