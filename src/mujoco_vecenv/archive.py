"""Files of arrays and a JSON header, written whole or not at all, read without running code."""

import json
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]


def digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return a fingerprint of names, types, shapes and bits: SHA-256, its first 16 digits."""
    fingerprint = sha256()
    for name, array in sorted(arrays.items()):
        fingerprint.update(f"{name} {array.dtype} {array.shape}\n".encode())
        fingerprint.update(np.ascontiguousarray(array).tobytes())
    return fingerprint.hexdigest()[:16]


def save(
    path: str | Path,
    kind: str,
    version: int,
    header: Mapping[str, Any],
    arrays: Mapping[str, Any],
) -> None:
    """Write a file (.npz). The same contents give the same bytes.

    Args:
        path: the file. If writing fails at any moment, what was there before is still there.
        kind: what the file is, for a reader to check.
        version: of its format.
        header: JSON's values.
        arrays: name to numpy array.
    """
    path = Path(path)
    text = json.dumps({"format": kind, "version": version, **header})
    part = path.with_name(path.name + ".part")
    with open(part, "wb") as file:
        np.savez(file, header=np.array(text), **arrays)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def load(path: str | Path, kind: str, version: int) -> tuple[dict[str, Any], Arrays]:
    """Read a file that `save` wrote.

    Returns:
        The header, and name to array.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it is damaged, of another kind or of another version.
    """
    with open(path, "rb") as opened:  # or OSError
        zipped = is_zipfile(opened)
    if not zipped:
        raise ValueError(f"{path} is no {kind}, or it is damaged: it is no .npz file")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        header: dict[str, Any] = json.loads(str(arrays.pop("header")))
        found = header.pop("format"), header.pop("version")
    except OSError:
        raise
    except Exception as error:  # whatever zip, zlib and JSON have to say of a damaged file
        raise ValueError(f"{path} is no {kind}, or it is damaged: {error}") from error
    if found != (kind, version):
        raise ValueError(
            f"{path} is a {found[0]!r} of version {found[1]}; "
            f"expected {kind!r} of version {version}"
        )
    return header, arrays
