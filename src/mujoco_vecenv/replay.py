"""Run a recorded episode again on the reference, and show its trajectory."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mujoco_vecenv.microduck.config import SUBSTEPS, TIMESTEP
from mujoco_vecenv.microduck.episodes import Recording
from mujoco_vecenv.microduck.layout import ACTIONS
from mujoco_vecenv.microduck.reference import MicroduckEnv


@dataclass
class Trajectory:
    """What an episode did, one row per control step.

    Attributes:
        observations: (T + 1, 48) float32, the first one included.
        rewards: (T,).
        height: (T,) trunk height, m.
        upright: (T,) cosine of the trunk's tilt.
        pushed: (T,) bool.
        terms: reward term to its (T,) weighted values.
    """

    observations: NDArray[np.float32]
    rewards: NDArray[np.float64]
    height: NDArray[np.float64]
    upright: NDArray[np.float64]
    pushed: NDArray[np.bool_]
    terms: dict[str, NDArray[np.float64]]


def replay(recording: Recording) -> Trajectory:
    """Run a recording on the reference.

    Where no actions were recorded, the servos hold STAND (all actions 0) for the whole episode.
    """
    config = recording.config
    env = MicroduckEnv(**vars(config))
    actions = recording.actions
    if not len(actions):
        actions = np.zeros((config.episode_steps, ACTIONS))
    observations = [env.reset(episode=recording.episode)]
    rewards: list[float] = []
    infos: list[dict[str, Any]] = []
    for action in actions:
        obs, reward, _, info = env.step(action)
        observations.append(obs)
        rewards.append(reward)
        infos.append(info)
    return Trajectory(
        np.stack(observations),
        np.array(rewards),
        np.array([info["trunk_height"] for info in infos]),
        np.array([info["upright_cos"] for info in infos]),
        np.array([info["pushed"] for info in infos]),
        {name: np.array([info["terms"][name] for info in infos]) for name in infos[0]["terms"]},
    )


def plot(trajectory: Trajectory, title: str, path: Path) -> None:
    """Draw height, uprightness, pushes and reward terms over time to a PNG file.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'mujoco-vecenv[plot]'") from error
    seconds = TIMESTEP * SUBSTEPS * np.arange(1, len(trajectory.rewards) + 1)
    figure = Figure(figsize=(9, 6), layout="constrained")
    pose, terms = figure.subplots(2, 1, sharex=True)
    pose.plot(seconds, 100 * trajectory.height, label="trunk height, cm")
    pose.plot(seconds, 10 * trajectory.upright, label="cos of the tilt, ×10")
    for values, name in zip(trajectory.terms.values(), trajectory.terms, strict=True):
        terms.plot(seconds, values, label=name)
    terms.plot(seconds, trajectory.rewards, "k", label="reward")
    for axes in (pose, terms):
        for second in seconds[trajectory.pushed]:
            axes.axvline(second, color="0.6", linestyle=":")
        axes.legend(loc="best", fontsize="small")
    pose.set_title(f"{title} (dotted: pushes)")
    terms.set_xlabel("time, s")
    figure.savefig(path, dpi=120)
