"""The reward's terms and their weights, in the order they are added."""

from typing import Final

REWARDS: Final[dict[str, dict[str, float]]] = {
    "v1": {
        "upright": 1.0,
        "height": 1.0,
        "posture": -0.10,
        "action_rate": -0.05,
        "joint_vel": -2.0e-4,
        "effort": -0.02,
    },
    "v2": {
        "upright": 1.0,
        "height": 1.0,
        "action_rate": -0.05,
        "joint_vel": -4.2e-2,
    },
}
"""Reward version to {term: weight}. A held stand scores 2.0 per step in both."""

HEIGHT_WIDTH: Final = 0.03
"""Width of v1's bell-shaped height term, m."""
