"""InvertedPendulum-v5: balance a pole on a cart."""

from typing import Any

from gymnasium.envs.mujoco.inverted_pendulum_v5 import InvertedPendulumEnv

from mujoco_vecenv.checks import check_integer
from mujoco_vecenv.engine.task import Task
from mujoco_vecenv.suite.common import all_finite, load, observe_state, uniform_state

CASES = ({"frame_skip": 5, "reset_noise_scale": 0.12},)
"""Options beside the defaults for which the contract holds it against Gymnasium's."""


def terminated(qpos: Any, qvel: Any) -> bool:
    """Whether the pole leans by more than 0.2 rad, or the physics has failed."""
    return bool(not (all_finite(qpos) and all_finite(qvel)) or abs(qpos[1]) > 0.2)


def reward(qpos: Any, qvel: Any, info: Any) -> Any:
    """Reward each step that the pole stays up."""
    survived = 0 if terminated(qpos, qvel) else 1
    info.reward_survive = survived
    return survived


def make(
    xml_file: str = "inverted_pendulum.xml",
    frame_skip: int = 2,
    reset_noise_scale: float = 0.01,
) -> Task:
    """Return the task. The options are those of Gymnasium's environment."""
    path, model = load(xml_file)
    return Task(
        name="InvertedPendulum-v5",
        model=path,
        substeps=check_integer("frame_skip", frame_skip, 1),
        observations=model.nq + model.nv,
        episode_steps=1000,
        params={"skip": 0},
        info={"reward_survive": int},
        reset=uniform_state(reset_noise_scale),
        compile_reset=True,
        reward=reward,
        terminated=terminated,
        observe=observe_state,
    )


reference = InvertedPendulumEnv

__all__ = ["make", "reference"]
