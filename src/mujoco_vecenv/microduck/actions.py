"""The Microduck's actions: float64, and named by joint where they are refused."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mujoco_vecenv.engine import actions as engine
from mujoco_vecenv.microduck.layout import JOINTS


def as_actions(actions: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return actions as a contiguous float64 array; see `mujoco_vecenv.engine.actions`."""
    return engine.as_actions(actions, shape).astype(np.float64, copy=False)


def check_finite(actions: NDArray[np.float64]) -> None:
    """Raise ActionError at the first action that is NaN or infinite, naming its joint."""
    engine.check_finite(actions, JOINTS)
