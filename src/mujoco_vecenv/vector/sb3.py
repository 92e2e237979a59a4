"""Every task as a `stable_baselines3.common.vec_env.VecEnv`."""

from typing import Any, Final, NoReturn

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvStepReturn

from mujoco_vecenv.checks import check_integer
from mujoco_vecenv.vector.gymnasium_env import Infos, TaskVectorEnv

_SHARED: Final = ("action_space", "metadata", "observation_space", "render_mode")


class SB3VecEnv(VecEnv):
    """n environments of a task on the batch engine.

    It is Stable-Baselines3's DummyVecEnv over n single environments to the last bit: observations,
    float32 rewards, ends and infos. Options of `set_options` have no effect, as on Gymnasium's
    MuJoCo environments.

    Args:
        task: what `mujoco_vecenv.tasks.make_task` takes.
        n: number of environments.
        seed: seeds environment i with `seed + i` at the next reset, as `seed()` does. None leaves
            that to the system, or to the algorithm that trains on them.
        max_episode_steps: control steps after which an episode is truncated, in place of the
            task's own; None for that, -1 for no limit.
        threads: threads; None for the smaller of n and what the machine and
            MUJOCO_VECENV_MAX_THREADS allow. Results do not depend on it.
        allow_overcommit: accept more threads than that.
        **options: the task's own.

    Raises:
        TypeError, ValueError: a value is of the wrong type or outside its range, or an option is
            unknown. The message names it.

    Example:
        >>> from stable_baselines3 import PPO
        >>> from mujoco_vecenv.vector.sb3 import SB3VecEnv
        >>> model = PPO("MlpPolicy", SB3VecEnv("HalfCheetah-v5", n=16), seed=0)
        >>> model = model.learn(100_000)
    """

    render_mode: str | None = None

    def __init__(
        self,
        task: str,
        n: int = 4,
        seed: int | None = None,
        *,
        max_episode_steps: int | None = None,
        threads: int | None = None,
        allow_overcommit: bool = False,
        **options: Any,
    ):
        self._envs = TaskVectorEnv(
            task,
            n,
            AutoresetMode.SAME_STEP,
            max_episode_steps,
            threads,
            allow_overcommit,
            **options,
        )
        self._actions: Any = None
        super().__init__(
            self._envs.num_envs, self._envs.single_observation_space, self._envs.single_action_space
        )
        if seed is not None:
            self.seed(check_integer("seed", seed, 0))

    def reset(self) -> NDArray[Any]:
        """Begin a new episode in every environment and return the first observations."""
        obs, infos = self._envs.reset(seed=self._seeds)
        self.reset_infos = self._separate(infos)
        self._reset_seeds()
        self._reset_options()
        return obs

    def step_async(self, actions: NDArray[Any]) -> None:
        """Take actions for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Step every environment and begin a new episode where one ends.

        Returns:
            observations, float32 rewards, ends and infos; see
            stable_baselines3.common.vec_env.VecEnv.

        Raises:
            RuntimeError: closed, or not reset.
            TypeError, ValueError: the actions are not (n, actions) finite real numbers; nothing
                moved.
        """
        obs, rewards, terminated, truncated, batch = self._envs.step(self._actions)
        infos = self._separate(batch)
        done = terminated | truncated
        for i in np.flatnonzero(done).tolist():
            self.reset_infos[i] = {name: infos[i][name] for name in self._envs.task.reset_info}
            infos[i] = {name: batch["final_info"][name][i] for name in self._envs.task.info}
            infos[i]["terminal_observation"] = batch["final_obs"][i]
        for info, limit in zip(infos, (truncated & ~terminated).tolist(), strict=True):
            info["TimeLimit.truncated"] = limit
        return obs, rewards.astype(np.float32), done, infos

    def _separate(self, batch: Infos) -> list[Infos]:
        """Return a dictionary per environment of infos that are arrays."""
        names = [name for name in self._envs.task.info if name in batch]
        if not names:
            return [{} for _ in range(self.num_envs)]
        rows = zip(*(batch[name] for name in names), strict=True)
        return [dict(zip(names, row, strict=True)) for row in rows]

    def close(self) -> None:
        """End the environments. Closing twice is fine."""
        self._envs.close()

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Return for each environment an attribute that they share.

        Raises:
            AttributeError: it is none of action_space, metadata, observation_space, render_mode.
        """
        if attr_name not in _SHARED:
            raise AttributeError(
                f"the environments of a batch have no attribute {attr_name!r} to get; they share "
                f"{', '.join(_SHARED)}"
            )
        return [getattr(self, attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> NoReturn:
        """Raise AttributeError: a batch has no separate environments."""
        raise AttributeError(
            f"the environments of a batch have no attribute {attr_name!r} to set: pass the task's "
            "options when you make them"
        )

    def env_method(
        self,
        method_name: str,
        *method_args: Any,
        indices: VecEnvIndices = None,
        **method_kwargs: Any,
    ) -> NoReturn:
        """Raise AttributeError: a batch has no separate environments."""
        raise AttributeError(f"the environments of a batch have no method {method_name!r} to call")

    def env_is_wrapped(
        self,
        wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]],
        indices: VecEnvIndices = None,
    ) -> list[bool]:
        """Return False for each environment."""
        return [False for _ in self._get_indices(indices)]
