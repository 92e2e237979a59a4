"""Compiled models as values."""

from hashlib import sha256

import mujoco
import numpy as np


def model_digest(model: mujoco.MjModel) -> str:
    """Return a fingerprint of a compiled model: SHA-256, 16 digits."""
    buffer = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, buffer)
    return sha256(buffer.tobytes()).hexdigest()[:16]
