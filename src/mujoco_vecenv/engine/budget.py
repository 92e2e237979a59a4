"""How many threads may run at once, and the refusal of more."""

import os
from pathlib import Path

from mujoco_vecenv.checks import check_integer

MAX_THREADS_VARIABLE = "MUJOCO_VECENV_MAX_THREADS"


def usable_cpus() -> int:
    """Count the CPUs this process may use: its affinity mask, within its container's quota."""
    try:
        cpus = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        cpus = os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cpus = min(cpus, max(1, int(quota) // int(period)))
    except (OSError, ValueError):  # no control group, or not version 2
        pass
    return cpus


def thread_budget() -> tuple[int, str]:
    """Return the most threads allowed, and what sets that limit, in words.

    Raises:
        ValueError: the environment variable MUJOCO_VECENV_MAX_THREADS is no positive integer.
    """
    cpus = usable_cpus()
    text = os.environ.get(MAX_THREADS_VARIABLE)
    if text is None:
        return cpus, f"{cpus} usable CPUs"
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{MAX_THREADS_VARIABLE} must be a positive integer, got {text!r}")
    if int(text) < cpus:
        return int(text), f"{MAX_THREADS_VARIABLE}={text}"
    return cpus, f"{cpus} usable CPUs"


def choose_threads(n: int, threads: int | None, allow_overcommit: bool) -> int:
    """Return the number of threads to run n simulations on.

    Args:
        n: number of simulations.
        threads: the number asked for, or None for the smaller of n and the budget.
        allow_overcommit: accept more threads than the budget.

    Raises:
        TypeError: threads is no integer.
        ValueError: threads is below 1, or above the budget without allow_overcommit.
    """
    budget, source = thread_budget()
    if threads is None:
        return min(n, budget)
    threads = check_integer("threads", threads, 1)
    if threads > budget and not allow_overcommit:
        raise ValueError(
            f"threads={threads} is more than the {source}: oversubscribed threads slow each other "
            f"down. Use threads={budget} or fewer, or pass allow_overcommit=True"
        )
    return threads
