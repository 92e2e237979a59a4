"""The task's arithmetic over all environments, compiled.

Every function walks the environments one by one and does for each what the reference does with
numpy, in the same order of operations, so that every double comes out the same to the last bit. No
fast-math and no fused multiply-add: both round differently from numpy.

Arrays have one row per environment; those of 14 columns are in actuator order.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mujoco_vecenv.engine.compiled import compiled
from mujoco_vecenv.engine.native import (
    mul_mat_t_vec3,
    mul_mat_vec3,
    mul_quat,
    neg_quat,
    normalize4,
    quat_to_mat,
    rot_vec_quat,
)
from mujoco_vecenv.microduck.layout import ACTIONS, OBSERVATIONS

RUNNING = np.dtype(
    [
        ("t", np.int64),  # control steps done in the episode
        ("previous", np.float64, ACTIONS),  # the last action, clipped to [-1, 1]
        ("action_rate", np.float64),  # mean square of its difference from the one before
        ("latency", np.int64),  # control steps between an action and its effect
        ("next_push", np.int64),  # which push comes next
        ("pushed", np.bool_),  # whether this step gave a push
        ("noisy", np.bool_),  # whether the episode has sensor noise
    ],
    align=True,
)
"""One environment's running episode, next to its MuJoCo state."""

TASK = np.dtype(
    [
        ("default", np.float64, ACTIONS),  # STAND angles, rad
        ("lo", np.float64, ACTIONS),  # least target, rad
        ("hi", np.float64, ACTIONS),  # greatest target, rad
        ("qpos", np.int64, ACTIONS),  # the joints' addresses in qpos
        ("qvel", np.int64, ACTIONS),  # and in qvel
        ("imu_quat", np.float64, 4),  # the IMU site's orientation in the trunk
        ("imu_turned", np.bool_),  # whether that is any other than the trunk's own
        ("scale", np.float32, OBSERVATIONS),  # the observation's factors
        ("action_scale", np.float64),  # rad per unit of action
        ("stand_height", np.float64),  # m
        ("height_width", np.float64),  # width of v1's height term, m
        # 2.0. Not written into the code, because the compiler turns `x ** 2.0` into x·x, which is
        # not what the C library's pow returns for one double in about 1,200.
        ("square", np.float64),
        ("episode_steps", np.int64),  # control steps in an episode
        # Where each part of the observation begins. Here, and not as constants in the code,
        # because Numba would keep compiled code when only another module's constants change.
        ("angles", np.int64),
        ("velocities", np.int64),
        ("previous_action", np.int64),
        ("gyro", np.int64),
        ("gravity", np.int64),
    ],
    align=True,
)
"""What is the same in all environments and all episodes."""


class Scratch(NamedTuple):
    """Room for one environment's numbers in between: whole arrays, since slicing costs more."""

    rotation: NDArray[np.float64]  # (9,) of the trunk
    quat: NDArray[np.float64]  # (4,) the sensor `orientation`
    gyro: NDArray[np.float64]  # (3,) the sensor `angular-velocity`, rad/s
    gravity: NDArray[np.float64]  # (3,) world -z in the frame of quat
    joints: NDArray[np.float64]  # (14,)
    quat2: NDArray[np.float64]  # (4,)
    vector: NDArray[np.float64]  # (3,)
    vector2: NDArray[np.float64]  # (3,)
    matrix: NDArray[np.float64]  # (9,)


@compiled
def scratch():
    """Return a Scratch."""
    return Scratch(
        np.empty(9),
        np.empty(4),
        np.empty(3),
        np.empty(3),
        np.empty(ACTIONS),
        np.empty(4),
        np.empty(3),
        np.empty(3),
        np.empty(9),
    )


@compiled
def begin_step(tasks, running, delayed, push_steps, push_velocity, qvel, ctrl, actions):
    """Turn actions into servo targets and give the pushes that are due, unless one is not finite.

    Args:
        tasks: (1,) TASK.
        running: (n,) RUNNING; takes the clipped actions and their rate.
        delayed: (n, L, 14) ring buffers of the actions on their way, of which an environment uses
            the first `latency` slots.
        push_steps: (n, K) when pushes come; -1 after the last.
        push_velocity: (n, K, 2) what they add to the trunk's velocity, m/s.
        qvel: (n, nv) velocities; takes the pushes.
        ctrl: (n, 14) takes the targets, rad.
        actions: (n, 14) as the caller gave them.

    Returns:
        Whether all actions are finite; if not, nothing has changed.
    """
    for a in actions.flat:
        if not math.isfinite(a):
            return False
    task = tasks[0]
    change = np.empty(ACTIONS)
    for i in range(len(running)):
        env = running[i]
        slot = env.t % env.latency if env.latency > 0 else -1
        for j in range(ACTIONS):
            a = min(max(actions[i, j], -1.0), 1.0)
            change[j] = a - env.previous[j]
            env.previous[j] = a
            if slot >= 0:
                delayed[i, slot, j], a = a, delayed[i, slot, j]
            target = task.default[j] + task.action_scale * a
            ctrl[i, j] = min(max(target, task.lo[j]), task.hi[j])
        env.action_rate = mean_square(change)
        k = env.next_push
        env.pushed = k < push_steps.shape[1] and push_steps[i, k] == env.t
        if env.pushed:
            qvel[i, 0] += push_velocity[i, k, 0]
            qvel[i, 1] += push_velocity[i, k, 1]
            env.next_push = k + 1
    return True


@compiled
def finish_step(
    tasks, running, noise, qpos, qvel, ctrl, servos, weights, rewards, done, facts, obs
):
    """Reward and observe each environment in the state it has reached, and count the step.

    Args:
        tasks: (1,) TASK.
        running: (n,) RUNNING; t is counted up.
        noise: (n, steps + 1, 7) sensor noise, one row per observation of the episode.
        qpos: (n, nq) positions.
        qvel: (n, nv) velocities.
        ctrl: (n, 14) servo targets, rad.
        servos: (n, 14, 7) gear, gain, the bias's three coefficients, least and greatest force.
        weights: (T,) the terms' weights: six for v1, four for v2.
        rewards: (n,) takes the sums of the terms.
        done: (n,) takes whether the episode is over.
        facts: (n, T + 4) takes the weighted terms, trunk height (m), the cosine of its tilt,
            whether it was pushed, and t.
        obs: (n, 48) float32, takes the observations.

    Returns:
        How many episodes are over.
    """
    over = 0
    task = tasks[0]
    room = scratch()
    numbers = room.joints
    for i in range(len(running)):
        env = running[i]
        read_trunk(task, qpos, qvel, i, room)
        height = qpos[i, 2]
        upright = room.rotation[8]
        facts[i, 0] = weights[0] * max(0.0, upright)
        if len(weights) == 6:  # v1
            off = (height - task.stand_height) / task.height_width
            facts[i, 1] = weights[1] * math.exp(-(off**task.square))
            for j in range(ACTIONS):
                numbers[j] = qpos[i, task.qpos[j]] - task.default[j]
            facts[i, 2] = weights[2] * mean_square(numbers)
            for j in range(ACTIONS):
                length = servos[i, j, 0] * qpos[i, task.qpos[j]]
                velocity = servos[i, j, 0] * qvel[i, task.qvel[j]]
                bias = servos[i, j, 2] + servos[i, j, 3] * length + servos[i, j, 4] * velocity
                force = servos[i, j, 1] * ctrl[i, j] + bias
                numbers[j] = min(max(force, servos[i, j, 5]), servos[i, j, 6])
            facts[i, 5] = weights[5] * mean_square(numbers)
            k = 3
        else:
            facts[i, 1] = weights[1] * min(max(height / task.stand_height, 0.0), 1.0)
            k = 2
        facts[i, k] = weights[k] * env.action_rate
        for j in range(ACTIONS):
            numbers[j] = qvel[i, task.qvel[j]]
        facts[i, k + 1] = weights[k + 1] * mean_square(numbers)

        reward = 0.0
        for k in range(len(weights)):
            reward += facts[i, k]
        rewards[i] = reward
        env.t += 1
        done[i] = env.t >= task.episode_steps
        over += done[i]
        facts[i, -4] = height
        facts[i, -3] = upright
        facts[i, -2] = env.pushed
        facts[i, -1] = env.t
        _observe(task, env, noise, qpos, qvel, i, room, obs)
    return over


@compiled
def observe(tasks, running, noise, qpos, qvel, ids, obs):
    """Write the observations of some environments.

    Args:
        tasks: (1,) TASK.
        running: (n,) RUNNING.
        noise: (n, steps + 1, 7) sensor noise.
        qpos: (n, nq) positions.
        qvel: (n, nv) velocities.
        ids: (m,) the environments.
        obs: (n, 48) float32, takes the observations.
    """
    task = tasks[0]
    room = scratch()
    for i in ids:
        read_trunk(task, qpos, qvel, i, room)
        _observe(task, running[i], noise, qpos, qvel, i, room, obs)


@compiled
def _observe(task, env, noise, qpos, qvel, i, room, obs):
    """Write environment i's observation, given what `read_trunk` wrote."""
    # Read once: a store to obs could be one to task, for all the compiler knows.
    angles, velocities, previous_action = task.angles, task.velocities, task.previous_action
    for j in range(ACTIONS):
        k = angles + j
        obs[i, k] = np.float32((qpos[i, task.qpos[j]] - task.default[j]) * task.scale[k])
        k = velocities + j
        obs[i, k] = np.float32(qvel[i, task.qvel[j]] * task.scale[k])
        k = previous_action + j
        obs[i, k] = np.float32(env.previous[j] * task.scale[k])
    if env.noisy:
        for j in range(3):
            room.gyro[j] += noise[i, env.t, j]
        for j in range(4):
            room.quat[j] += noise[i, env.t, 3 + j]
    gravity_in_frame(room)
    for j in range(3):
        k = task.gyro + j
        obs[i, k] = np.float32(room.gyro[j] * task.scale[k])
        k = task.gravity + j
        obs[i, k] = np.float32(room.gravity[j] * task.scale[k])


@compiled
def read_trunk(task, qpos, qvel, i, room):
    """Compute what MuJoCo computes for the trunk and the sensors on it at a state.

    The trunk hangs on a free joint, so its pose and what an IMU fixed to it reads follow from that
    joint's 13 numbers alone. Computing just that spares every step MuJoCo's position and velocity
    stages of the whole robot at the new state, about a twentieth of its physics. The functions and
    their order are those of mj_kinematics, mj_comVel and the sensors framequat and gyro.

    Args:
        task: TASK.
        qpos: (n, nq) positions.
        qvel: (n, nv) velocities.
        i: the environment.
        room: Scratch; takes rotation, quat and gyro.
    """
    trunk, local, world = room.quat2, room.vector, room.vector2
    for j in range(4):
        trunk[j] = qpos[i, 3 + j]
    for j in range(3):
        local[j] = qvel[i, 3 + j]
    normalize4(trunk.ctypes)
    quat_to_mat(room.rotation.ctypes, trunk.ctypes)
    mul_quat(room.quat.ctypes, trunk.ctypes, task.imu_quat.ctypes)
    mul_mat_vec3(world.ctypes, room.rotation.ctypes, local.ctypes)
    if task.imu_turned:
        quat_to_mat(room.matrix.ctypes, room.quat.ctypes)
        mul_mat_t_vec3(room.gyro.ctypes, room.matrix.ctypes, world.ctypes)
    else:
        mul_mat_t_vec3(room.gyro.ctypes, room.rotation.ctypes, world.ctypes)


@compiled
def gravity_in_frame(room):
    """Write world -z in the frame that `room.quat` orients to `room.gravity`."""
    unit, down = room.quat2, room.vector
    for j in range(4):
        unit[j] = room.quat[j]
    down[0], down[1], down[2] = 0.0, 0.0, -1.0
    normalize4(unit.ctypes)
    neg_quat(unit.ctypes, unit.ctypes)
    rot_vec_quat(room.gravity.ctypes, down.ctypes, unit.ctypes)


@compiled
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
