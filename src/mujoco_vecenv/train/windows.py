"""Microducks that are pushed, and what comes of it, in windows of the same length.

A robot stands, and a push comes in the window's first step. A robot that is upright at the end may
go on into a later window.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import mujoco
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from mujoco_vecenv.microduck.config import MicroduckConfig
from mujoco_vecenv.microduck.layout import GRAVITY
from mujoco_vecenv.microduck.task import load_robot
from mujoco_vecenv.train.evaluate import Act
from mujoco_vecenv.vector.vec_env import VecEnv

SEEDS: Final = 2_000_000_000
"""Environments are seeded from here on. Evaluations and training with seeds below 1,998 do not."""

_UPRIGHT: Final = 0.9  # cosine of the tilt
_ANKLES: Final = ("left_ankle", "right_ankle")  # the joints that turn the feet

Floats = NDArray[np.float64]
Rows = dict[str, NDArray[Any]]
"""States of robots, as `VecEnv.get_state` returns them, without the header."""
Tell = Callable[[dict[str, Any]], object]
"""Is told of each iteration of a search and each round of imitation, as a line of the log."""
Choose = Callable[[Any, int], NDArray[Any]]
"""(n, 48) observations and the step in the window to (n, 14) actions."""


@dataclass(frozen=True)
class Window:
    """What came of a window.

    Attributes:
        returns: (n,) sums of rewards.
        obs: (n, 48) the last observations.
        rows: states from its course, one of each robot, from a step drawn for each; empty if
            none were asked for.
        strides: (n, 2) m that the left and the right foot have moved along the heading that their
            robot was pushed at, by the step that was asked for; 0 if none was.
    """

    returns: Floats
    obs: NDArray[np.float32]
    rows: Rows
    strides: Floats

    @property
    def upright(self) -> NDArray[np.bool_]:
        """(n,) whether the robots are upright at its end."""
        upright: NDArray[np.bool_] = -self.obs[:, GRAVITY + 2] > _UPRIGHT
        return upright

    @property
    def survivors(self) -> Rows | None:
        """The rows of robots that are upright at its end; None if there are none."""
        ids = np.flatnonzero(self.upright)
        return take(self.rows, ids) if len(ids) else None


class Robots:
    """n robots that windows begin with, on threads.

    Args:
        config: the environments.
        n: number of robots.
        seed: of the first.
        steps: control steps from a push to the end of its window.
        rng: draws which robots are pushed, and from which steps of a window its rows are.
        threads: threads for the physics.
    """

    def __init__(
        self, config: MicroduckConfig, n: int, seed: int, steps: int, rng: Generator, threads: int
    ):
        # Longer than a window by a step: no episode ends.
        episodes = replace(config, episode_steps=steps + 1, n_pushes=1)
        self.n = n
        self.steps = steps
        self._seed = seed
        self._model = load_robot(config).model
        self._data = mujoco.MjData(self._model)
        self._feet = [int(self._model.joint(name).bodyid[0]) for name in _ANKLES]
        self._headings = np.zeros(n)
        self.envs = VecEnv(n, seed, threads=min(n, threads), **vars(episodes))
        self._rng = rng

    def close(self) -> None:
        """End the threads."""
        self.envs.close()

    def standing(self, act: Act, ages: Sequence[int]) -> Rows:
        """Let new robots stand for a window, and return states of those that are upright then.

        Args:
            act: the policy.
            ages: control steps that robots may have stood, within a window.

        Raises:
            ValueError: less than half of them are.
        """
        self.envs.reset(self._seed)
        obs = self._push(self._rows(), np.zeros((self.n, 2)))
        window = self.run(obs, lambda obs, step: act(obs), ages)
        survivors = window.survivors
        if survivors is None or window.upright.mean() < 0.5:
            raise ValueError(
                f"{1 - window.upright.mean():.0%} of the robots fall by themselves: this needs a "
                "policy that stands, such as one of mjvec train --preset minute"
            )
        return survivors

    def pushed(self, pool: Rows, survivors: Rows | None, velocity: Floats) -> Any:
        """Push robots of both pools, every second one of each, and return their observations.

        Args:
            pool: robots that nothing has happened to yet.
            survivors: robots that were pushed before; None takes all from the other pool.
            velocity: (n, 2) m/s, along the heading and to its left.
        """
        rows = take(pool, self._rng.integers(0, len(pool["t"]), self.n))
        if survivors is not None:
            again = self._rng.integers(0, len(survivors["t"]), len(rows["t"][1::2]))
            for name, array in take(survivors, again).items():
                rows[name][1::2] = array
        return self._push(rows, velocity)

    def run(
        self, obs: Any, choose: Choose, times: Sequence[int] = (), stride: int | None = None
    ) -> Window:
        """Run a window.

        Args:
            obs: (n, 48) the first observations.
            choose: what acts.
            times: steps that rows may be from; each costs a snapshot.
            stride: step by which strides are measured.
        """
        returns = np.zeros(self.n)
        of_each = self._rng.choice(times, self.n) if len(times) else np.full(self.n, self.steps)
        rows: Rows = {}
        strides = np.zeros((self.n, len(self._feet)))
        start = strides if stride is None else self._places()
        for step in range(self.steps):
            if step == stride:
                ahead = np.stack([np.cos(self._headings), np.sin(self._headings)], axis=1)
                strides = ((self._places() - start) * ahead[:, None]).sum(2)
            obs, rewards, _, _ = self.envs.step(choose(obs, step))
            returns += rewards
            here = of_each == step
            if here.any():
                for name, array in self._rows().items():
                    rows.setdefault(name, np.empty_like(array))[here] = array[here]
        return Window(returns, obs, rows, strides)

    def _places(self) -> Floats:
        """Return (n, feet, 2): where the feet are on the floor, m."""
        places = np.empty((self.n, len(self._feet), 2))
        for place, physics in zip(places, self._rows()["physics"], strict=True):
            self._data.qpos[:] = physics[1 : 1 + self._model.nq]  # after the time
            mujoco.mj_kinematics(self._model, self._data)
            place[:] = self._data.xpos[self._feet, :2]
        return places

    def _rows(self) -> Rows:
        state = self.envs.get_state()
        self._header = state.pop("header")
        return state

    def _push(self, rows: Rows, velocity: Floats) -> Any:
        """Put the robots into states, pushed in their next step; write the pushes into the rows."""
        w, x, y, z = rows["physics"][:, 4:8].T  # after the time: position, then quaternion
        self._headings = np.arctan2(2 * (w * z + x * y), 1 - 2 * (y**2 + z**2))
        cos, sin = np.cos(self._headings), np.sin(self._headings)
        along, left = velocity.T
        rows["t"][:] = rows["next_push"][:] = rows["push_steps"][:] = 0
        rows["push_velocity"][:, 0] = np.stack(
            [cos * along - sin * left, sin * along + cos * left], 1
        )
        self.envs.set_state({"header": self._header, **rows})
        obs: NDArray[np.float32] = self.envs.reset()
        return obs


def take(rows: Rows, ids: NDArray[np.int64]) -> Rows:
    """Return the states of some robots, copied."""
    return {name: array[ids] for name, array in rows.items()}
