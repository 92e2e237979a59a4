"""A look at the machine before and during a run: a busy one must not be read as a clean one."""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from mujoco_vecenv.engine.budget import usable_cpus

BUSY: Final = 0.10
"""Share of a core from which another process counts as busy."""

_CPU: Final = Path("/sys/devices/system/cpu")


class BusyMachineError(RuntimeError):
    """The machine is too busy for a run that was asked to be strict."""


@dataclass
class Sample:
    """What the machine was doing in the time up to a moment.

    Attributes:
        at: seconds since the epoch.
        load: load average over the last minute.
        busy: other processes that used more than a tenth of a core since the sample before, as
            "name (pid)", to their share of a core.
        throttled: thermal throttle events so far, or None where they cannot be read.
    """

    at: float
    load: float
    busy: dict[str, float]
    throttled: int | None


@dataclass
class Box:
    """The machine under a run.

    Attributes:
        facts: what does not change: CPUs, governor, virtualisation.
        samples: what changed, from before the run to its end.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.facts = {
            "usable cpus": usable_cpus(),
            "governor": _read(_CPU / "cpu0/cpufreq/scaling_governor"),
            "virtualisation": _virtualisation(),
        }
        self._times = _other_cpu_times()
        self._since = time.monotonic()

    def sample(self, wait: float = 0.0) -> None:
        """Record what the machine has been doing since the sample before.

        Args:
            wait: seconds to watch first.
        """
        time.sleep(wait)
        times, now = _other_cpu_times(), time.monotonic()
        busy = {
            name: round((used - self._times[name]) / (now - self._since), 2)
            for name, used in times.items()
            if name in self._times and (used - self._times[name]) / (now - self._since) > BUSY
        }
        self.samples.append(Sample(time.time(), os.getloadavg()[0], busy, _throttled()))
        self._times, self._since = times, now

    @property
    def warnings(self) -> list[str]:
        """What of all this a reader of the results must know."""
        warnings = []
        most: dict[str, float] = {}
        for sample in self.samples:
            for name, share in sample.busy.items():
                most[name] = max(share, most.get(name, 0.0))
        for name, share in most.items():
            warnings.append(f"another process was busy: {name} used up to {share:.0%} of a core")
        first = self.samples[0] if self.samples else None
        if first and first.load > self.facts["usable cpus"]:
            warnings.append(f"the load average was {first.load:.1f} at the start")
        throttled = [s.throttled for s in self.samples if s.throttled is not None]
        if throttled and throttled[-1] > throttled[0]:
            warnings.append(f"the CPU throttled {throttled[-1] - throttled[0]} times")
        governor = self.facts["governor"]
        if governor not in (None, "performance"):
            warnings.append(f"the CPU's governor is {governor!r}, not 'performance'")
        if self.facts["virtualisation"]:
            warnings.append(
                f"a virtual machine ({self.facts['virtualisation']}): neighbours cannot be seen"
            )
        return warnings

    def refuse_if_busy(self) -> None:
        """Raise BusyMachineError, naming who is busy, unless the machine was idle so far."""
        busy = {name: share for sample in self.samples for name, share in sample.busy.items()}
        if busy:
            names = ", ".join(f"{name} at {share:.0%}" for name, share in busy.items())
            raise BusyMachineError(
                f"the machine is busy: {names} of a core. Wait or stop them, or leave out --strict"
            )


def _other_cpu_times() -> dict[str, float]:
    """Return the CPU seconds used so far by every process that is not ours."""
    try:
        me = psutil.Process()
        ours = {me.pid, *(child.pid for child in me.children(recursive=True))}
    except psutil.Error:
        ours = {os.getpid()}
    times = {}
    for process in psutil.process_iter(["pid", "name", "cpu_times"]):
        cpu = process.info["cpu_times"]
        if process.info["pid"] not in ours and cpu is not None:
            times[f"{process.info['name']} ({process.info['pid']})"] = cpu.user + cpu.system
    return times


def _throttled() -> int | None:
    counts = [_read(path) for path in _CPU.glob("cpu*/thermal_throttle/core_throttle_count")]
    numbers = [int(count) for count in counts if count]
    return sum(numbers) if numbers else None


def _virtualisation() -> str | None:
    name = _read(Path("/sys/hypervisor/type")) or _read(Path("/sys/class/dmi/id/product_name"))
    cpu = _read(Path("/proc/cpuinfo")) or ""
    return (name or "hypervisor") if " hypervisor" in cpu else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except OSError:
        return None
