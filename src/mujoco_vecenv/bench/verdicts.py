"""What a series of windows says: rates, ratios, and whether it can be trusted."""

import statistics
from collections.abc import Sequence
from typing import Final

import numpy as np

DRIFT: Final = 0.10
"""A reference that moves by more than this from its first window makes a sweep unstable."""
TREND: Final = 0.04
"""A reference that moves one way by more than this over three windows is trending."""
SETTLED: Final = 0.02
"""A plateau that changes by no more than this from end to end has settled."""
MEANINGFUL_SECONDS: Final = 1.0
"""A shorter window says more about the clock and the scheduler than about a contestant."""


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median over rounds of ours / theirs; rounds that only one of them ran are left."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=False))


def reference_verdicts(rates: Sequence[float]) -> list[str]:
    """Judge the windows of a reference that should always run alike.

    Returns:
        "unstable" if one is more than 10% off the first, "trending" if three in a row move one
        way by more than 4%, both, or nothing.
    """
    verdicts = []
    if any(abs(rate / rates[0] - 1) > DRIFT for rate in rates):
        verdicts.append("unstable")
    for a, b, c in zip(rates, rates[1:], rates[2:], strict=False):
        if (a < b < c or a > b > c) and abs(c / a - 1) > TREND:
            verdicts.append("trending")
            break
    return verdicts


def plateau(rates: Sequence[float]) -> tuple[float, float, str]:
    """Judge the last third of a run without pauses.

    Returns:
        Its lowest and highest rate, and whether it is "settled", "falling", "rising" (its straight
        line of best fit changes by more than 2% and by more than twice what the windows scatter
        about it), "scattered" (by more than 10%) or "too short" (fewer than three windows).
    """
    last = np.array(rates[len(rates) - max(3, len(rates) // 3) :] if len(rates) >= 3 else rates)
    low, high = (float(last.min()), float(last.max())) if len(last) else (0.0, 0.0)
    if len(rates) < 9:
        return low, high, "too short"
    x = np.arange(len(last))
    slope, start = np.polyfit(x, last, 1)
    change = slope * (len(last) - 1) / last.mean()
    scatter = float(np.std(last - (start + slope * x))) / last.mean()
    if abs(change) > SETTLED and abs(change) > 2 * scatter:
        return low, high, "falling" if change < 0 else "rising"
    if (high - low) / last.mean() > DRIFT:
        return low, high, "scattered"
    return low, high, "settled"


def amdahl(serial_us: float, parallel_us: float, n: int, cores: int) -> float:
    """Return the environment steps per second that Amdahl's law gives. Computed, not measured.

    Args:
        serial_us: what one step of all environments spends on one core only, µs.
        parallel_us: what it spends on work that divides among cores, µs on one core.
        n: environments; no more cores than environments can work.
        cores: cores.
    """
    return 1e6 * n / (serial_us + parallel_us / min(cores, n))
