"""One environment of a task in plain Python: the slow twin that the compiled one is held against.

Its functions run uncompiled, so `print` and `pdb` work in them.
"""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from mujoco_vecenv.checks import check_integer
from mujoco_vecenv.engine.actions import as_actions, check_finite
from mujoco_vecenv.engine.contact_forces import FIELD
from mujoco_vecenv.engine.task import ACTION, Task, TaskError, arguments, place, row, run
from mujoco_vecenv.infos import Info


class TaskEnv:
    """One environment of a task.

    Args:
        task: the task.

    Attributes:
        model, data: MuJoCo's own.
        rng: the generator that episodes are drawn from, None until the first reset.
        columns: the task's columns, with one row.
        model_fields: the model's fields that the task writes, with one row.
    """

    def __init__(self, task: Task):
        self.task = task
        self.model = copy.copy(task.compiled_model)
        self.data = mujoco.MjData(self.model)
        self.low, self.high = task.limits(self.model)
        self.rng: np.random.Generator | None = None
        self.elapsed = 0
        self.columns = task.new_columns(1)
        self._params = row(task.params_record(), 0)
        self._keyframe = task.keyframe_id(self.model)
        self.model_fields = {name: getattr(self.model, name)[None] for name in task.model_fields}
        names = task.model_fields
        if task.recompute_constants:  # which touches any of them
            arrays = {name: getattr(self.model, name) for name in dir(self.model)}
            names = tuple(
                name
                for name, array in arrays.items()
                if isinstance(array, np.ndarray) and array.flags.writeable
            )
        self._nominal = {name: getattr(self.model, name).copy() for name in names}
        self._begun = False

    def reset(self, seed: int | None = None) -> tuple[NDArray[Any], Info]:
        """Begin an episode.

        Args:
            seed: replaces the generator; None goes on with the present one.

        Returns:
            The observation and what a reset tells.
        """
        if self._begun and seed is None and self.task.leave is not None:
            self._run(self.task.leave, rng=self.rng)
        if seed is not None:
            self.rng = np.random.default_rng(check_integer("seed", seed, 0))
        elif self.rng is None:
            self.rng = np.random.default_rng()
        if self._keyframe < 0:
            mujoco.mj_resetData(self.model, self.data)
        else:
            mujoco.mj_resetDataKeyframe(self.model, self.data, self._keyframe)
        for column in self.columns.values():
            column[0] = np.zeros((), column.dtype)
        for name, nominal in self._nominal.items():
            getattr(self.model, name)[:] = nominal
        self.elapsed = 0
        fields = {name: field[0] for name, field in self.model_fields.items()}
        self._run(self.task.reset, rng=self.rng, fields=fields, **fields)
        self.recompute_constants()
        self._begun = True
        mujoco.mj_forward(self.model, self.data)
        info = row(self.task.new_infos(1), 0)
        self._run(self.task.describe, info=info)
        obs = self._observe(info)
        return obs, told(self.task, info, self.low.dtype, self.task.reset_info)

    def step(self, action: ArrayLike) -> tuple[NDArray[Any], float, bool, bool, Info]:
        """Apply an action for one control step.

        Args:
            action: (actions,) float32 or float64.

        Returns:
            observation, reward, terminated, truncated, info.
        """
        if self.rng is None:
            raise RuntimeError("step() before the first reset(): call reset() to begin an episode")
        action = as_actions(action, self.low.shape)
        check_finite(action)
        action = action.view()
        action.flags.writeable = False  # it is the caller's
        info = row(self.task.new_infos(1), 0)
        self._run(self.task.control, action=action, info=info)
        mujoco.mj_step(self.model, self.data, self.task.substeps)
        if FIELD in self.task.reads:
            mujoco.mj_rnePostConstraint(self.model, self.data)
        self._compute(self.task.stage)
        reward = self._result(float, self.task.reward, action=action, info=info)
        terminated = self._result(bool, self.task.terminated, action=action, info=info)
        self.elapsed += 1
        truncated = self.task.episode_steps is not None and self.elapsed >= self.task.episode_steps
        self._run(self.task.describe, info=info)
        obs = self._observe(info)
        return obs, reward, terminated, truncated, told(self.task, info, action.dtype)

    def recompute_constants(self) -> None:
        """Derive the model's constants from its fields, if the task says so."""
        if self.task.recompute_constants:
            mujoco.mj_setConst(self.model, mujoco.MjData(self.model))

    def _compute(self, stage: mujoco.mjtStage | None) -> None:
        """Compute the stages up to one at the present state, as a batch does."""
        model, data = self.model, self.data
        if stage == mujoco.mjtStage.mjSTAGE_ACC:
            mujoco.mj_forward(model, data)
        elif stage in (mujoco.mjtStage.mjSTAGE_POS, mujoco.mjtStage.mjSTAGE_VEL):
            mujoco.mj_fwdPosition(model, data)
            mujoco.mj_sensorPos(model, data)
            if stage == mujoco.mjtStage.mjSTAGE_VEL:
                mujoco.mj_fwdVelocity(model, data)
                mujoco.mj_sensorVel(model, data)

    def _observe(self, info: Any) -> NDArray[Any]:
        obs: NDArray[Any] = np.full(self.task.observations, np.nan, self.task.observation_dtype)
        self._run(self.task.observe, obs=obs, info=info)
        return obs

    def _result(self, kind: type, function: Callable[..., Any], **values: Any) -> Any:
        """Call a function and return its number or truth as Python's own."""
        value = self._run(function, **values)
        if np.ndim(value) or np.asarray(value).dtype.kind not in "fiub":
            raise TaskError(
                f"task {self.task.name}: {place(function)} must return a {kind.__name__}, got "
                f"{value!r}"
            )
        return kind(value)

    def _run(self, function: Callable[..., Any], **values: Any) -> Any:
        """Call a function with what its arguments name."""
        for name in arguments(function):
            if name in values:
                continue
            if name == "params":
                values[name] = self._params
            elif name == "elapsed":
                values[name] = self.elapsed
            elif name in self.columns:
                values[name] = row(self.columns[name], 0)
            else:
                values[name] = getattr(self.data, name)
        return run(self.task, function, {name: values[name] for name in arguments(function)})


def rehearse(task: Task, steps: int = 2) -> None:
    """Run a task's functions in plain Python, where a wrong index is an error with a line.

    Raises:
        TaskError: a function failed, or left a part of the observation unwritten.
    """
    env = TaskEnv(task)
    obs, _ = env.reset(seed=0)
    for _ in range(steps):
        obs, *_ = env.step(np.clip(np.float32(0), env.low, env.high))
    missing = np.flatnonzero(np.isnan(obs))
    if len(missing):
        raise TaskError(
            f"task {task.name}: observe() left obs[{missing[0]}] unwritten, or NaN; observations="
            f"{task.observations}"
        )


def told(
    task: Task, record: Any, actions: np.dtype[Any], names: Iterable[str] | None = None
) -> Info:
    """Return what a record of infos tells, each value in its announced dtype.

    Args:
        task: the task.
        record: a row of `Task.new_infos`.
        actions: the dtype of the actions, for infos that take it.
        names: which infos; None for all.
    """
    info: Info = {}
    for name in task.info if names is None else names:
        spec, value = task.info[name], record[name]
        if isinstance(spec, str) and spec == ACTION:
            value = actions.type(value)
        info[name] = value.copy() if isinstance(value, np.ndarray) else value
    return info
