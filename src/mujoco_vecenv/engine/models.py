"""Compiled models: made from files, and as values."""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Final

import mujoco
import numpy as np

_TOLD: Final[set[str]] = set()


def compile_model(path: Path) -> mujoco.MjModel:
    """Compile a model from its file, and let MuJoCo give each warning once in this process."""
    with _handling(_tell_once):
        return mujoco.MjModel.from_xml_path(str(path))


def compile_again(spec: mujoco.MjSpec) -> mujoco.MjModel:
    """Compile a changed model, without the warnings that the model has given before."""
    with _handling(lambda message: None), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return spec.compile()


def _tell_once(message: str) -> None:
    if message not in _TOLD:
        _TOLD.add(message)
        print(f"WARNING: {message}", file=sys.stderr)


@contextmanager
def _handling(handler: Callable[[str], None]) -> Iterator[None]:
    """Handle MuJoCo's warnings, unless the user does."""
    theirs = mujoco.get_mju_user_warning()
    if theirs is None:
        mujoco.set_mju_user_warning(handler)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(theirs)


def model_digest(model: mujoco.MjModel) -> str:
    """Return a fingerprint of a compiled model: SHA-256, 16 digits."""
    buffer = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, buffer)
    return sha256(buffer.tobytes()).hexdigest()[:16]
