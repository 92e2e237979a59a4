"""The reference does what its contract says, step by step."""

import math

import mujoco
import numpy as np
import pytest

from mujoco_vecenv import MicroduckEnv
from mujoco_vecenv.microduck.config import SCENES
from mujoco_vecenv.microduck.layout import JOINTS


def test_defaults():
    assert vars(MicroduckEnv().config) == {
        "variant": "groundcontact",
        "episode_steps": 250,
        "action_scale": 0.35,
        "n_pushes": 3,
        "push_speed": (0.15, 0.45),
        "init_noise": 0.02,
        "reward": "v1",
        "latency": 0,
        "sensor_noise": False,
        "dr": None,
        "assets_dir": None,
    }


@pytest.mark.parametrize("variant", SCENES)
def test_joints_are_found_by_name(variant):
    robot = MicroduckEnv(variant).robot
    for name, qpos, qvel in zip(JOINTS, robot.qpos, robot.qvel, strict=True):
        assert robot.model.joint(name).qposadr[0] == qpos
        assert robot.model.joint(name).dofadr[0] == qvel
    if "backlash" in variant:
        assert robot.qpos.tolist() == list(range(7, 35, 2))
        assert robot.qvel.tolist() == list(range(6, 34, 2))


def test_first_state_is_drawn_in_the_contracts_order():
    env = MicroduckEnv(init_noise=0.8)
    obs = env.reset(seed=11)
    rng = np.random.default_rng(11)
    angles = env.robot.default + rng.uniform(-0.8, 0.8, 14)
    velocities = rng.uniform(-4.0, 4.0, 14)
    expected = np.clip(angles, env.robot.lo, env.robot.hi)
    assert (expected != angles).any()  # the clamp to the joints' range matters here
    assert env.data.qpos[env.robot.qpos].tolist() == expected.tolist()
    assert env.data.qvel[env.robot.qvel].tolist() == velocities.tolist()
    steps = np.sort(rng.choice(np.arange(25, 225), size=3, replace=False))
    speed = rng.uniform(0.15, 0.45, size=3)
    theta = rng.uniform(0, 2 * np.pi, size=3)
    assert env.episode.push_steps.tolist() == steps.tolist()
    assert env.episode.push_velocity[:, 0].tolist() == (speed * np.cos(theta)).tolist()
    assert env.episode.push_velocity[:, 1].tolist() == (speed * np.sin(theta)).tolist()
    assert obs[:14].tolist() == (expected - env.robot.default).astype(np.float32).tolist()
    assert obs[28:42].tolist() == [0.0] * 14


def test_reset_without_a_seed_goes_on_drawing():
    one, other = MicroduckEnv(seed=3), MicroduckEnv(seed=9)
    first = one.reset()
    second = one.reset()
    assert first.tobytes() != second.tobytes()
    assert other.reset(seed=3).tobytes() == first.tobytes()
    assert other.reset().tobytes() == second.tobytes()


@pytest.mark.parametrize(
    ("steps", "n_pushes", "expected"),
    [(250, 0, 0), (250, -1, 0), (50, 3, 0), (51, 3, 1), (52, 5, 2), (250, 5, 5)],
)
def test_number_of_pushes(steps, n_pushes, expected):
    env = MicroduckEnv(episode_steps=steps, n_pushes=n_pushes)
    env.reset()
    assert len(env.episode.push_steps) == expected
    assert all(25 <= step < steps - 25 for step in env.episode.push_steps)


def test_a_push_comes_at_its_step_and_is_flagged():
    env = MicroduckEnv(seed=2, episode_steps=120)
    env.reset()
    steps = env.episode.push_steps.tolist()
    flagged = [t for t in range(120) if env.step(np.zeros(14))[3]["pushed"]]
    assert flagged == steps


def test_latency_delays_the_servos_but_not_the_observed_action():
    env = MicroduckEnv(latency=2, init_noise=0, n_pushes=0)
    env.reset()
    stand = env.robot.default.tolist()
    first = np.linspace(-1, 1, 14)
    obs, *_ = env.step(first)
    assert obs[28:42].tolist() == first.astype(np.float32).tolist()
    assert env.data.ctrl.tolist() == stand
    env.step(np.zeros(14))
    assert env.data.ctrl.tolist() == stand
    env.step(np.zeros(14))
    target = np.clip(env.robot.default + 0.35 * first, env.robot.lo, env.robot.hi)
    assert env.data.ctrl.tolist() == target.tolist()


def test_everything_is_read_at_the_new_state():
    env = MicroduckEnv(sensor_noise=False)
    env.reset()
    obs, _, _, info = env.step(np.ones(14))
    fresh = mujoco.MjData(env.model)
    fresh.qpos[:], fresh.qvel[:], fresh.ctrl[:] = env.data.qpos, env.data.qvel, env.data.ctrl
    mujoco.mj_forward(env.model, fresh)
    assert info["trunk_height"] == fresh.body("trunk_base").xpos[2]
    assert info["upright_cos"] == fresh.body("trunk_base").xmat[8]
    gyro = fresh.sensor("angular-velocity").data * np.float32(0.25)
    assert obs[42:45].tolist() == gyro.astype(np.float32).tolist()


@pytest.mark.parametrize("reward", ["v1", "v2"])
def test_reward_by_hand(reward):
    env = MicroduckEnv(reward=reward)
    env.reset()
    previous, a = np.full(14, 0.5), np.linspace(-2, 2, 14)
    env.step(previous)
    _, total, _, info = env.step(a)
    a = np.clip(a, -1, 1)
    data, robot = env.data, env.robot
    h, cos = info["trunk_height"], info["upright_cos"]
    rate = float(np.mean((a - previous) ** 2))
    velocity = float(np.mean(data.qvel[robot.qvel] ** 2))
    if reward == "v1":
        posture = float(np.mean((data.qpos[robot.qpos] - robot.default) ** 2))
        effort = float(np.mean(data.actuator_force**2))
        expected = {
            "upright": 1.0 * max(0, cos),
            "height": 1.0 * math.exp(-(((h - 0.12) / 0.03) ** 2)),
            "posture": -0.10 * posture,
            "action_rate": -0.05 * rate,
            "joint_vel": -2.0e-4 * velocity,
            "effort": -0.02 * effort,
        }
    else:
        expected = {
            "upright": 1.0 * max(0, cos),
            "height": 1.0 * float(np.clip(h / 0.12, 0, 1)),
            "action_rate": -0.05 * rate,
            "joint_vel": -4.2e-2 * velocity,
        }
    assert list(info["terms"].items()) == list(expected.items())
    added = 0.0
    for term in expected.values():
        added += term
    assert total == added
    assert info["reward"] == reward


def test_a_held_stand_is_worth_two():
    env = MicroduckEnv(init_noise=0, n_pushes=0)
    env.reset()
    _, reward, _, info = env.step(np.zeros(14))
    assert 1.98 < reward < 2.0
    assert info["fallen"] is False


def test_a_fallen_robot_is_flagged():
    env = MicroduckEnv(init_noise=0, n_pushes=0)
    env.reset()
    env.data.qpos[2] = 0.03
    env.data.qpos[3:7] = [0.5, 0.5, 0.5, 0.5]
    _, _, done, info = env.step(np.zeros(14))
    assert info["fallen"] == (info["trunk_height"] < 0.04)
    assert not done
