"""n simulations of one model on a thread pool, as arrays with a row for each."""

import mujoco
import numpy as np
from mujoco.batch import Batch, SimulationError
from numpy.typing import NDArray

_NO_STAGE = int(mujoco.mjtStage.mjSTAGE_NONE)


class PhysicsError(RuntimeError):
    """MuJoCo raised an error in some simulations, which kept the state before the call."""


class Simulations:
    """n simulations of a model, stepped together.

    A simulation is its row of state. Fields derived from the state are not computed: they would
    cost a pass over the whole model, and what a task needs of them is often cheaper to compute.

    Args:
        model: the compiled model; the simulations run on a copy.
        n: number of simulations.
        threads: number of threads, the caller's included. Results do not depend on it.
        keyframe: id of the keyframe that simulations begin at.
    """

    def __init__(self, model: mujoco.MjModel, n: int, threads: int, keyframe: int):
        try:
            self._batch = Batch(model, nsim=n, nthread=min(n, threads))
        except ValueError as error:
            if "bad_alloc" not in str(error):
                raise
            raise MemoryError(f"no memory for {n} simulations") from error
        self._batch.reset(None, keyframe, _NO_STAGE)
        self._first = self._batch.state[0].copy()

    @property
    def rows(self) -> NDArray[np.float64]:
        """The live, writable (n, nstate) rows of state, in the order of mjSTATE_INTEGRATION."""
        rows: NDArray[np.float64] = self._batch.state
        return rows

    def state(self, name: str) -> NDArray[np.float64]:
        """Return the live, writable (n, …) array of MjData's state field `name`."""
        field: NDArray[np.float64] = self._batch.bind(name)
        return field

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

    def step(self, substeps: int) -> None:
        """Advance every simulation by `substeps` physics steps.

        Raises:
            PhysicsError: MuJoCo raised in some simulations.
        """
        try:
            self._batch.step(None, substeps, _NO_STAGE)
        except SimulationError as error:
            raise PhysicsError(str(error)) from error

    def reset(self, ids: NDArray[np.int64]) -> None:
        """Put simulations back to the keyframe they began at."""
        self._batch.state[ids] = self._first
