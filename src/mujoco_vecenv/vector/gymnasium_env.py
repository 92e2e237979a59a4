"""Every task as a `gymnasium.vector.VectorEnv`, and its reference as a `gymnasium.Env`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from mujoco_vecenv.checks import check_integer
from mujoco_vecenv.engine.actions import ActionError, as_actions
from mujoco_vecenv.engine.budget import choose_threads
from mujoco_vecenv.engine.envs import Step, TaskEnvs
from mujoco_vecenv.engine.task import ACTION, MOST_STEPS, Task
from mujoco_vecenv.engine.twin import TaskEnv
from mujoco_vecenv.tasks import TASKS, make_reference, make_task
from mujoco_vecenv.vector.facade import Facade

NAMESPACE: Final = "mujoco_vecenv"

Infos = dict[str, Any]


def register_all() -> None:
    """Let `gymnasium.make` and `gymnasium.make_vec` know the tasks, as `mujoco_vecenv/<name>`."""
    for name in TASKS:
        register(name)


def register(name: str, task: str | None = None) -> None:
    """Let `gymnasium.make` and `gymnasium.make_vec` know a task, as `mujoco_vecenv/<name>`.

    Args:
        name: what it is to be called, such as `CartPole-v0`.
        task: what `mujoco_vecenv.tasks.make_task` takes; None for the name itself.
    """
    suite = gymnasium.registry.get(name) if task is None else None
    gymnasium.register(
        id=f"{NAMESPACE}/{name}",
        entry_point=f"{__name__}:make_single",
        vector_entry_point=f"{__name__}:TaskVectorEnv",
        reward_threshold=None if suite is None else suite.reward_threshold,
        # Gymnasium's own environments leave their time limit to it. The others have one inside.
        max_episode_steps=None if suite is None else suite.max_episode_steps,
        kwargs={"task": task or name},
    )


def make_single(task: str, render_mode: str | None = None, **options: Any) -> Any:
    """Return one environment: what the task is held against."""
    if render_mode is not None:
        options["render_mode"] = render_mode
    reference = make_reference(task, **options)
    if isinstance(reference, TaskEnv):
        return SingleEnv(reference)
    return reference


class SingleEnv(gymnasium.Env[NDArray[Any], NDArray[Any]]):
    """One environment of a task in plain Python.

    Args:
        env: the environment.
    """

    def __init__(self, env: TaskEnv):
        self.env = env
        self.metadata = {"render_modes": [], "render_fps": frequency(env.task)}
        self.observation_space, self.action_space = spaces(env.task, env.low, env.high)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], Infos]:
        """Begin an episode; see gymnasium.Env."""
        super().reset(seed=seed)
        if seed is None:
            self.env.rng = self.np_random
        obs, info = self.env.reset(seed)
        self._np_random = self.env.rng
        return obs, _with_plain_bools(info)

    def step(self, action: NDArray[Any]) -> tuple[NDArray[Any], float, bool, bool, Infos]:
        """Apply an action; see gymnasium.Env."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated, _with_plain_bools(info)


def _with_plain_bools(info: Infos) -> Infos:
    """Return infos with Python's bools: of NumPy's, Gymnasium makes arrays of objects."""
    return {name: bool(v) if isinstance(v, np.bool_) else v for name, v in info.items()}


def spaces(task: Task, low: NDArray[np.float32], high: NDArray[np.float32]) -> tuple[Box, Box]:
    """Return the spaces of one environment's observation and action."""
    shape = (task.observations,)
    return Box(-np.inf, np.inf, shape, task.observation_dtype), Box(low, high, dtype=np.float32)


def frequency(task: Task) -> int:
    """Return the control steps in a second."""
    return int(np.round(1.0 / (task.compiled_model.opt.timestep * task.substeps)))


class TaskVectorEnv(Facade[TaskEnvs], VectorEnv[NDArray[Any], NDArray[Any], NDArray[Any]]):
    """n environments of a task on the batch engine.

    It is `gymnasium.vector.SyncVectorEnv` over n single environments to the last bit, in each of
    its autoreset modes: observations, rewards, ends and infos.

    Args:
        task: what `mujoco_vecenv.tasks.make_task` takes.
        num_envs: number of environments.
        autoreset_mode: NEXT_STEP, SAME_STEP or DISABLED of `gymnasium.vector.AutoresetMode`.
        max_episode_steps: control steps after which an episode is truncated, in place of the
            task's own; None for that, -1 for no limit.
        threads: threads; None for the smaller of num_envs and what the machine and
            MUJOCO_VECENV_MAX_THREADS allow. Results do not depend on it.
        allow_overcommit: accept more threads than that.
        render_mode: None; a batch draws nothing.
        **options: the task's own.

    Raises:
        TypeError, ValueError: a value is of the wrong type or outside its range, or an option is
            unknown. The message names it.

    Example:
        >>> import gymnasium, mujoco_vecenv
        >>> envs = gymnasium.make_vec("mujoco_vecenv/HalfCheetah-v5", num_envs=64)
        >>> obs, infos = envs.reset(seed=0)
        >>> obs, rewards, terminations, truncations, infos = envs.step(envs.action_space.sample())
        >>> obs.shape, obs.dtype
        ((64, 17), dtype('float64'))
    """

    _envs: TaskEnvs | None = None  # until it is made: Gymnasium 1.3 closes what could not be, too

    _instead = ""

    def __init__(
        self,
        task: str,
        num_envs: int = 1,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        max_episode_steps: int | None = None,
        threads: int | None = None,
        allow_overcommit: bool = False,
        render_mode: str | None = None,
        **options: Any,
    ):
        if render_mode is not None:
            raise ValueError(
                f"render_mode={render_mode!r}: a batch of environments draws nothing; "
                "gymnasium.make gives a single one that does"
            )
        self.num_envs = self.n = check_integer("num_envs", num_envs, 1)
        names = AutoresetMode.__members__
        self.autoreset_mode = names.get(str(autoreset_mode)) or AutoresetMode(autoreset_mode)
        made = make_task(task, **options)
        if max_episode_steps is not None:
            limit = check_integer("max_episode_steps", max_episode_steps, -1, MOST_STEPS)
            made = replace(made, episode_steps=None if limit == -1 else limit)
        self.threads = choose_threads(self.n, threads, allow_overcommit)
        envs = TaskEnvs(made, self.n, self.threads)
        super().__init__(envs)
        self.task = made
        self.render_mode = None
        self.metadata = {
            "render_modes": [],
            "render_fps": frequency(made),
            "autoreset_mode": self.autoreset_mode,
        }
        self.single_observation_space, self.single_action_space = spaces(made, envs.low, envs.high)
        self.observation_space = batch_space(self.single_observation_space, self.n)
        self.action_space = batch_space(self.single_action_space, self.n)
        self._shape = (self.n, len(envs.low))
        self._begun = False
        self._everyone, self._nobody = np.ones(self.n, np.bool_), np.zeros(self.n, np.bool_)
        self._over = self._nobody  # whose episode has ended: that very array where none has
        self._obs: NDArray[Any] = np.zeros((self.n, made.observations), made.observation_dtype)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> tuple[NDArray[Any], Infos]:
        """Begin new episodes.

        Args:
            seed: an int seeds environment i with `seed + i`, a list gives each its own; None
                leaves an environment's generator as it is, at first one that the system seeded.
            options: {"reset_mask": (num_envs,) bool} begins only those episodes.

        Returns:
            observations: (num_envs, observations).
            infos: (num_envs,) arrays by name, and masks by `_name`.

        Raises:
            TypeError, ValueError: an argument does not fit; nothing has changed.
        """
        envs = self._open()
        mask = self._mask(options)
        seeds = self._check_seeds(seed)
        ids = np.flatnonzero(mask)
        for i in ids.tolist():
            if seeds[i] is not None:
                envs.seed(i, seeds[i])
        self._begun = True
        over = self._over & ~mask
        self._over = over if over.any() else self._nobody
        infos = self.task.new_infos(self.n)
        with self._closing_on_failure():
            envs.begin(ids, self._obs, infos)
        return self._obs.copy(), self._tell(infos, self._nobody, mask, envs.low.dtype)

    def _mask(self, options: Mapping[str, Any] | None) -> NDArray[np.bool_]:
        if not isinstance(options, Mapping | None):
            raise TypeError(f"options must be a dictionary or None, got {options!r}")
        if options is None or "reset_mask" not in options:
            return np.ones(self.n, np.bool_)
        mask = options["reset_mask"]
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
            raise TypeError(f"options['reset_mask'] must be a numpy array of bools, got {mask!r}")
        if mask.shape != (self.n,):
            raise ValueError(f"options['reset_mask'] must have shape ({self.n},), got {mask.shape}")
        if not mask.any():
            raise ValueError("options['reset_mask'] must be True somewhere, got False everywhere")
        if not self._begun and not mask.all():
            raise ValueError(
                "options['reset_mask'] must be True everywhere at the first reset(): the others "
                "have no episode yet"
            )
        return mask

    def _check_seeds(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        if seed is None:
            return [None] * self.n
        if isinstance(seed, bytes | str):
            raise TypeError(f"seed must be an integer or one for each environment, got {seed!r}")
        if isinstance(seed, Sequence) or (isinstance(seed, np.ndarray) and seed.ndim):
            if len(seed) != self.n:
                raise ValueError(f"seed: {len(seed)} given for {self.n} environments")
            return [
                None if s is None else check_integer(f"seed[{i}]", s, 0) for i, s in enumerate(seed)
            ]
        first = check_integer("seed", seed, 0)
        return [first + i for i in range(self.n)]

    def step(
        self, actions: Any
    ) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], Infos]:
        """Step the environments.

        Args:
            actions: (num_envs, actions) real numbers. Those that are not float32 are taken as
                float64.

        Returns:
            observations, rewards, terminations, truncations and infos, as the autoreset mode has
            them; see gymnasium.vector.VectorEnv.

        Raises:
            RuntimeError: closed, not reset, or in mode DISABLED an ended episode not reset.
            TypeError, ValueError: the actions are not (num_envs, actions) finite real numbers;
                nothing moved.
        """
        envs = self._open()
        if not self._begun:
            raise RuntimeError("step() before the first reset(): call reset() to begin episodes")
        array = as_actions(actions, self._shape)
        stepped, begun = self._everyone, self._nobody
        ids = None
        if self._over is not self._nobody:
            if self.autoreset_mode is AutoresetMode.DISABLED:
                raise RuntimeError(
                    f"the episode of environment {np.flatnonzero(self._over)[0]} has ended: call "
                    "reset(options={'reset_mask': terminations | truncations}) first, or choose "
                    "another autoreset_mode"
                )
            stepped, begun = ~self._over, self._over
            ids = np.flatnonzero(stepped)
        try:
            step = envs.step(array, ids)
            final: Infos = {}
            if ids is not None:
                envs.begin(np.flatnonzero(begun), step.obs, step.infos)
            over = self._nobody
            if step.over:
                over = step.terminated | step.truncated
                if self.autoreset_mode is AutoresetMode.SAME_STEP:
                    final = self._finals(step, over, array.dtype)
                    envs.begin(np.flatnonzero(over), step.obs, step.infos)
                    stepped, begun = ~over, over
                    over = self._nobody
        except ActionError:  # nothing has moved
            raise
        except BaseException as error:
            self._fail(error)
            raise
        self._over = over
        self._obs = step.obs.copy()
        infos = final | self._tell(step.infos, stepped, begun, array.dtype)
        return step.obs, step.rewards, step.terminated, step.truncated, infos

    def _finals(self, step: Step, over: NDArray[np.bool_], actions: np.dtype[Any]) -> Infos:
        """Return the last observations and infos of episodes that ended."""
        last: NDArray[Any] = np.full(self.n, None, object)
        for i in np.flatnonzero(over).tolist():
            last[i] = step.obs[i].copy()
        infos = step.infos.copy()
        infos[~over] = np.zeros((), self.task.info_dtype)
        told = self._tell(infos, over, self._nobody, actions)
        return {
            "final_obs": last,
            "_final_obs": over.copy(),
            "final_info": told,
            "_final_info": over.copy(),
        }

    def _tell(
        self,
        records: NDArray[Any],
        stepped: NDArray[np.bool_],
        begun: NDArray[np.bool_],
        actions: np.dtype[Any],
    ) -> Infos:
        """Return infos as Gymnasium has them: an array and a mask for each name that is told."""
        infos: Infos = {}
        some = begun is not self._nobody and bool(begun.any())
        any_stepped = stepped is self._everyone or bool(stepped.any())
        for name, spec in self.task.info.items():
            also = some and name in self.task.reset_info
            if not any_stepped and not also:
                continue
            values = np.asarray(records[name])
            if isinstance(spec, str) and spec == ACTION:
                values = values.astype(actions)
            infos[name] = values
            infos[f"_{name}"] = stepped | begun if also else stepped.copy()
        return infos

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """The generators of the environments."""
        return tuple(self._open().rngs)

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """What each environment was seeded with."""
        sequences: list[Any] = [rng.bit_generator.seed_seq for rng in self.np_random]
        return tuple(sequence.entropy for sequence in sequences)

    def render(self) -> None:
        """Raise RuntimeError: a batch of environments draws nothing."""
        raise RuntimeError(
            "a batch of environments draws nothing; gymnasium.make gives a single one"
        )

    def close(self, **kwargs: Any) -> None:
        """End the environments. Closing twice is fine."""
        Facade.close(self)
        self.closed = True
