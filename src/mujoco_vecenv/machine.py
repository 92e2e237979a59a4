"""What goes on record beside every result: the command, this machine and its software."""

import platform
import shlex
import sys
from importlib.metadata import version
from pathlib import Path

from mujoco_vecenv.engine.budget import usable_cpus


def command() -> str:
    """Return the command that was given, as one would type it."""
    return shlex.join(["mjvec", *sys.argv[1:]])


def describe() -> dict[str, str]:
    """Return the versions and hardware that decide a result's bits and speed."""
    return {
        "mujoco-vecenv": version("mujoco-vecenv"),
        "mujoco": version("mujoco"),
        "numpy": version("numpy"),
        "numba": version("numba"),
        "python": platform.python_version(),
        "c library": " ".join(platform.libc_ver()).strip() or "unknown",
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_model(),
        "usable cpus": str(usable_cpus()),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return platform.processor() or "unknown"
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
