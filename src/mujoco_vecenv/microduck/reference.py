"""The Microduck environment in its plainest form: the definition all others are held against."""

import math
from collections import deque
from copy import deepcopy
from dataclasses import replace
from typing import Any

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from mujoco_vecenv.checks import check_integer
from mujoco_vecenv.engine.generators import rng_words, set_rng
from mujoco_vecenv.microduck.actions import as_actions, check_finite
from mujoco_vecenv.microduck.config import FALL_HEIGHT, STAND_HEIGHT, SUBSTEPS, MicroduckConfig
from mujoco_vecenv.microduck.draws import (
    Episode,
    draw_episode,
    draw_sensor_noise,
    draw_sensor_noises,
)
from mujoco_vecenv.microduck.episodes import check_episode
from mujoco_vecenv.microduck.layout import ACTIONS, OBS_SCALE
from mujoco_vecenv.microduck.randomization import DomainRandomizer
from mujoco_vecenv.microduck.rewards import HEIGHT_WIDTH, REWARDS
from mujoco_vecenv.microduck.robot import Robot, scene_path
from mujoco_vecenv.microduck.snapshots import (
    EnvState,
    physics_of,
    set_physics,
)


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
        self._randomizer = DomainRandomizer(self.model, self.config.dr)
        self._rng = np.random.default_rng(check_integer("seed", seed, 0))
        self._t: int | None = None  # None until the first reset

    def reset(self, seed: int | None = None, episode: Episode | None = None) -> NDArray[np.float32]:
        """Begin an episode.

        Args:
            seed: replaces the generator; None keeps drawing from the present one.
            episode: a recorded episode to run again instead of drawing one.

        Returns:
            (48,) observation.

        Raises:
            TypeError, ValueError: the episode does not fit; nothing has changed.
        """
        if episode is not None:
            check_episode(episode, self.config)
        if seed is not None:
            self._rng = np.random.default_rng(check_integer("seed", seed, 0))
        if episode is None:
            self._start(draw_episode(self._rng, self.config, self.robot))
        else:
            self._start(deepcopy(episode))
        return self._observe()

    def _start(self, episode: Episode) -> None:
        robot, data = self.robot, self.data
        self.episode = episode
        self._drawn = rng_words(self._rng)
        if episode.factors is None:
            self._randomizer.restore()
        else:
            self._randomizer.apply(episode.factors)

        mujoco.mj_resetDataKeyframe(self.model, data, robot.stand)
        mujoco.mj_forward(self.model, data)
        self._delayed = deque(np.zeros(ACTIONS) for _ in range(episode.latency))

        data.qpos[robot.qpos] = episode.angles
        data.qvel[robot.qvel] = episode.velocities
        mujoco.mj_forward(self.model, data)

        self._previous = np.zeros(ACTIONS)
        self._t = 0
        self._next_push = 0

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
            if self.episode.noise is not None:
                noise = self.episode.noise[self._t]
            else:
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

    def record(self) -> Episode:
        """Return what the running episode drew, the noise of all its observations included.

        Raises:
            RuntimeError: `reset` has not been called.
        """
        if self._t is None:
            raise RuntimeError("record() before the first reset(): no episode has been drawn")
        if self.episode.noise is not None or not self.episode.sensor_noise:
            return deepcopy(self.episode)
        rng = np.random.default_rng()
        set_rng(rng, self._drawn)
        noise = draw_sensor_noises(rng, self.robot, self.config.episode_steps + 1)
        return deepcopy(replace(self.episode, noise=noise))

    def get_state(self) -> EnvState:
        """Return all that decides how the environment goes on.

        Raises:
            RuntimeError: `reset` has not been called.
        """
        if self._t is None:
            raise RuntimeError("get_state() before the first reset(): there is no state yet")
        return EnvState(
            deepcopy(self.episode),
            physics_of(self.model, self.data),
            self._t,
            self._previous.copy(),
            np.array(self._delayed).reshape(-1, ACTIONS),
            self._next_push,
            self._drawn.copy(),
        )

    def set_state(self, state: EnvState) -> NDArray[np.float32]:
        """Go on from a state, as the environment that it was taken from would have.

        Returns:
            (48,) the observation last returned there.
        """
        set_rng(self._rng, state.rng)
        self._start(deepcopy(state.episode))
        set_physics(self.model, self.data, state.physics)
        self._previous = state.previous.copy()
        self._delayed = deque(state.delayed.copy())
        self._next_push = state.next_push
        if state.episode.sensor_noise and state.episode.noise is None:
            draw_sensor_noises(self._rng, self.robot, state.t)
        self._t = state.t
        return self._observe()
