"""The Microduck environment in its plainest form: the definition all others are held against."""

import math
from collections import deque
from typing import Any

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from mujoco_vecenv.microduck.actions import as_actions, check_finite
from mujoco_vecenv.microduck.config import FALL_HEIGHT, STAND_HEIGHT, SUBSTEPS, MicroduckConfig
from mujoco_vecenv.microduck.draws import draw_episode, draw_sensor_noise
from mujoco_vecenv.microduck.layout import ACTIONS, OBS_SCALE
from mujoco_vecenv.microduck.rewards import HEIGHT_WIDTH, REWARDS
from mujoco_vecenv.microduck.robot import Robot, scene_path


class MicroduckEnv:
    """One Microduck that learns to stand and to recover from pushes.

    Args:
        variant: the robot's model, a key of `config.SCENES`.
        seed: seeds `numpy.random.default_rng`.
        **keywords: the other attributes of `MicroduckConfig`.

    Raises:
        TypeError, ValueError: a keyword is unknown, or its value is not allowed.
        ModelError: the model lacks something the task needs.
    """

    def __init__(self, variant: str = "groundcontact", seed: int = 0, **keywords: Any):
        self.config = MicroduckConfig.from_keywords({"variant": variant, **keywords}, also=["seed"])
        path = scene_path(self.config)
        self.robot = Robot(mujoco.MjModel.from_xml_path(str(path)), path)
        self.model = self.robot.model
        self.data = mujoco.MjData(self.model)
        self._rng = np.random.default_rng(seed)
        self._t: int | None = None  # None until the first reset

    def reset(self, seed: int | None = None) -> NDArray[np.float32]:
        """Begin an episode.

        Args:
            seed: replaces the generator; None keeps drawing from the present one.

        Returns:
            (48,) observation.
        """
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        robot, data = self.robot, self.data
        self.episode = draw_episode(self._rng, self.config)

        mujoco.mj_resetDataKeyframe(self.model, data, robot.stand)
        mujoco.mj_forward(self.model, data)
        self._delayed = deque(np.zeros(ACTIONS) for _ in range(self.episode.latency))

        if self.episode.qpos_noise is not None:
            data.qpos[robot.qpos] += self.episode.qpos_noise
            data.qvel[robot.qvel] += self.episode.qvel_noise
            data.qpos[robot.qpos] = np.clip(data.qpos[robot.qpos], robot.lo, robot.hi)
            mujoco.mj_forward(self.model, data)

        self._previous = np.zeros(ACTIONS)
        self._t = 0
        self._next_push = 0
        return self._observe()

    def step(self, action: ArrayLike) -> tuple[NDArray[np.float32], float, bool, dict[str, Any]]:
        """Apply an action for one control step of 0.02 s.

        Args:
            action: (14,) servo targets relative to STAND, in units of `action_scale`, clipped to
                [-1, 1].

        Returns:
            observation: (48,) float32.
            reward: the sum of the reward's terms.
            done: whether the episode is over. It is always a truncation.
            info: terms, trunk_height (m), upright_cos, fallen, pushed, t, truncated, terminated
                and reward (its version).

        Raises:
            RuntimeError: `reset` has not been called.
            TypeError, ValueError: the action is not 14 finite numbers.
        """
        if self._t is None:
            raise RuntimeError("step() before the first reset(): call reset() to begin an episode")
        action = as_actions(action, (ACTIONS,))
        check_finite(action)
        a = np.clip(action, -1, 1)
        robot, data = self.robot, self.data

        applied = a
        if self.episode.latency > 0:
            self._delayed.append(a)
            applied = self._delayed.popleft()
        target = robot.default + self.config.action_scale * applied
        data.ctrl[:] = np.clip(target, robot.lo, robot.hi)

        pushes = self.episode.push_steps
        pushed = self._next_push < len(pushes) and bool(self._t == pushes[self._next_push])
        if pushed:
            data.qvel[0:2] += self.episode.push_velocity[self._next_push]
            self._next_push += 1

        for _ in range(SUBSTEPS):
            mujoco.mj_step(self.model, data)
        mujoco.mj_forward(self.model, data)

        height = float(data.xpos[robot.trunk, 2])
        upright = float(data.xmat[robot.trunk, 8])
        terms = self._terms(a, height, upright)
        reward = 0.0
        for term in terms.values():
            reward += term

        self._previous = a
        self._t += 1
        done = self._t >= self.config.episode_steps
        info = {
            "terms": terms,
            "trunk_height": height,
            "upright_cos": upright,
            "fallen": height < FALL_HEIGHT,
            "pushed": pushed,
            "t": self._t,
            "truncated": done,
            "terminated": False,
            "reward": self.config.reward,
        }
        return self._observe(), reward, done, info

    def _terms(self, a: NDArray[np.float64], height: float, upright: float) -> dict[str, float]:
        robot, data = self.robot, self.data
        version = self.config.reward
        action_rate = np.mean((a - self._previous) ** 2)
        joint_vel = np.mean(data.qvel[robot.qvel] ** 2)
        if version == "v1":
            values = {
                "upright": max(0.0, upright),
                # The C library's exp and pow: `**` between Python floats, not numpy's square.
                "height": math.exp(-(((height - STAND_HEIGHT) / HEIGHT_WIDTH) ** 2)),
                "posture": np.mean((data.qpos[robot.qpos] - robot.default) ** 2),
                "action_rate": action_rate,
                "joint_vel": joint_vel,
                "effort": np.mean(data.actuator_force**2),
            }
        else:
            values = {
                "upright": max(0.0, upright),
                "height": min(max(height / STAND_HEIGHT, 0.0), 1.0),
                "action_rate": action_rate,
                "joint_vel": joint_vel,
            }
        return {name: weight * float(values[name]) for name, weight in REWARDS[version].items()}

    def _observe(self) -> NDArray[np.float32]:
        robot, sensordata = self.robot, self.data.sensordata
        gyro = sensordata[robot.gyro : robot.gyro + 3].copy()
        quat = sensordata[robot.orientation : robot.orientation + 4].copy()
        if self.episode.sensor_noise:
            noise = draw_sensor_noise(self._rng, robot)
            gyro += noise[:3]
            quat += noise[3:]
        mujoco.mju_normalize4(quat)
        mujoco.mju_negQuat(quat, quat)
        gravity = np.empty(3)
        mujoco.mju_rotVecQuat(gravity, np.array([0.0, 0.0, -1.0]), quat)
        raw = np.concatenate(
            [
                self.data.qpos[robot.qpos] - robot.default,
                self.data.qvel[robot.qvel],
                self._previous,
                gyro,
                gravity,
            ]
        )
        return (raw * OBS_SCALE).astype(np.float32)
