"""The Microduck's reference as a `gymnasium.Env`."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from mujoco_vecenv.microduck.config import SUBSTEPS, TIMESTEP
from mujoco_vecenv.microduck.layout import ACTIONS, OBSERVATIONS
from mujoco_vecenv.microduck.reference import MicroduckEnv


class MicroduckGymnasiumEnv(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
    """One Microduck that learns to stand and to recover from pushes.

    Every end of an episode is a truncation. The infos are those of `MicroduckEnv`, each of the
    reward's terms as `reward_<term>`.

    Args:
        **keywords: attributes of `MicroduckConfig`.
    """

    def __init__(self, **keywords: Any):
        self.env = MicroduckEnv(**keywords)
        self.metadata = {"render_modes": [], "render_fps": round(1 / (TIMESTEP * SUBSTEPS))}
        self.observation_space = Box(-np.inf, np.inf, (OBSERVATIONS,), np.float32)
        self.action_space = Box(-1, 1, (ACTIONS,), np.float32)
        self._seeded = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode; see gymnasium.Env."""
        super().reset(seed=seed)
        if seed is None and not self._seeded:
            seed = int(self.np_random.integers(2**31))
        self._seeded = True
        return self.env.reset(seed), {}

    def step(
        self, action: NDArray[Any]
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Apply an action; see gymnasium.Env."""
        obs, reward, done, told = self.env.step(action)
        info = {f"reward_{term}": value for term, value in told["terms"].items()}
        for name in ("trunk_height", "upright_cos", "fallen", "pushed", "t"):
            info[name] = told[name]
        return obs, reward, False, done, info
