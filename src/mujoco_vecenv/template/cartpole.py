"""Balance a pole on a cart, near the middle of its rail."""

import math
from pathlib import Path

from mujoco_vecenv.engine.task import Task


def reset(rng, qpos, params):
    qpos[1] = rng.uniform(-params.lean, params.lean)


def control(action, ctrl, force):
    wanted = max(-1.0, min(1.0, action[0]))
    force[0] += 0.5 * (wanted - force[0])  # the motor lags behind
    ctrl[0] = force[0]


def reward(qpos, force, info):
    info.upright = math.cos(qpos[1])
    info.middle = -(qpos[0] * qpos[0])
    info.effort = -0.1 * force[0] * force[0]
    return info.upright + info.middle + info.effort


def terminated(qpos):
    return abs(qpos[0]) > 1.0 or abs(qpos[1]) > 0.5


def observe(qpos, qvel, force, obs):
    obs[0:2] = qpos
    obs[2:4] = qvel
    obs[4] = force[0]


def make(lean=0.2):
    return Task(
        name=Path(__file__).stem,
        model=Path(__file__).with_suffix(".xml"),
        substeps=4,  # of 0.005 s: 50 control steps a second
        episode_steps=250,
        observations=5,
        params={"lean": lean},
        columns={"force": (float, 1)},
        info={"upright": float, "middle": float, "effort": float},
        reset=reset,
        control=control,
        reward=reward,
        terminated=terminated,
        observe=observe,
    )
