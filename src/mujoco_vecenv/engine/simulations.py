"""n simulations of one model on a thread pool, as arrays with a row for each."""

import os
from typing import Final
from weakref import WeakSet

import mujoco
import numpy as np
from mujoco.batch import Batch, SimulationError
from numpy.typing import NDArray

_NO_STAGE = int(mujoco.mjtStage.mjSTAGE_NONE)

_BATCHES: Final[WeakSet[Batch]] = WeakSet()
_LEFT_BEHIND: Final[list[Batch]] = []
"""Batches of the process that this one was forked from. Deleting one, be it by the garbage
collector, would wait for threads that are not in this process."""


class PhysicsError(RuntimeError):
    """MuJoCo raised an error in some simulations, which kept the state before the call."""


class Simulations:
    """n simulations of a model, stepped together.

    A simulation is its row of state. Fields derived from the state are copied out only if they were
    asked for, and computed anew at the state reached only if a stage is given: that would cost a
    pass over the whole model, and what a task needs of them is often cheaper to compute.

    Args:
        model: the compiled model; the simulations run on a copy.
        n: number of simulations.
        threads: number of threads, the caller's included. Results do not depend on it.
        keyframe: id of the keyframe that simulations begin at, -1 for the model's default.
        stage: what to compute at the new state after each step; None leaves derived fields as
            mj_step does.

    Attributes:
        model: the model.
        first: (nstate,) the state that simulations begin at.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        n: int,
        threads: int,
        keyframe: int,
        stage: mujoco.mjtStage | None = None,
    ):
        try:
            self._batch = Batch(model, nsim=n, nthread=min(n, threads))
        except ValueError as error:
            if "bad_alloc" not in str(error):
                raise
            raise MemoryError(f"no memory for {n} simulations") from error
        _BATCHES.add(self._batch)
        self.model = model
        self._stage = _NO_STAGE if stage is None else int(stage)
        self._batch.reset(None, keyframe, _NO_STAGE)
        self.first: NDArray[np.float64] = self._batch.state[0].copy()

    @property
    def rows(self) -> NDArray[np.float64]:
        """The live, writable (n, nstate) rows of state, in the order of mjSTATE_INTEGRATION."""
        rows: NDArray[np.float64] = self._batch.state
        return rows

    def field(self, name: str) -> NDArray[np.float64]:
        """Return the live (n, …) array of a field of MjData; those of the state are writable."""
        field: NDArray[np.float64] = self._batch.bind(name)
        return field

    def row_source(self, name: str) -> str:
        """Return the expression of row i of a state field, in terms of the rows `state`."""
        field = self.field(name)
        if field.ndim > 2:
            return f"{name}[i]"
        first = (field.ctypes.data - self.rows.ctypes.data) // self.rows.itemsize
        if field.ndim == 1:
            return f"state[i, {first}]"
        return f"state[i, {first}:{first + field.shape[1]}]"

    def model_field(self, name: str) -> NDArray[np.float64]:
        """Give each simulation its own values of a model field.

        Returns:
            The live, writable (n, …) array, at first the model's values.
        """
        field: NDArray[np.float64] = self._batch.expand(name)
        return field

    def recompute_constants(self, ids: NDArray[np.int64]) -> None:
        """Derive simulations' constants from their own model fields, as mj_setConst does."""
        self._batch.set_const(ids)

    def step(self, substeps: int, ids: NDArray[np.int64] | None = None) -> None:
        """Advance simulations by `substeps` physics steps.

        Args:
            substeps: how many.
            ids: the simulations, ascending; None for all.

        Raises:
            PhysicsError: MuJoCo raised in some simulations.
        """
        try:
            self._batch.step(ids, substeps, self._stage)
        except SimulationError as error:
            raise PhysicsError(str(error)) from error

    def forward(self, ids: NDArray[np.int64]) -> None:
        """Compute the derived fields of simulations at their states, as mj_forward does."""
        try:
            self._batch.forward(ids)
        except SimulationError as error:
            raise PhysicsError(str(error)) from error


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _LEFT_BEHIND.extend(_BATCHES))
