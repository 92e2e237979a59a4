"""The Microduck's joints and its observation: which number is what."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

JOINTS: Final = (
    "left_hip_yaw",
    "left_hip_roll",
    "left_hip_pitch",
    "left_knee",
    "left_ankle",
    "neck_pitch",
    "head_pitch",
    "head_yaw",
    "head_roll",
    "right_hip_yaw",
    "right_hip_roll",
    "right_hip_pitch",
    "right_knee",
    "right_ankle",
)
"""The 14 actuated joints, in the order of actions, actuators and observations."""

ACTIONS: Final = len(JOINTS)

# Where each part of the observation begins.
ANGLES: Final = 0  # joint angle less its STAND angle, rad
VELOCITIES: Final = ANGLES + ACTIONS  # joint velocity, rad/s
PREVIOUS_ACTION: Final = VELOCITIES + ACTIONS  # the last action, clipped to [-1, 1]
GYRO: Final = PREVIOUS_ACTION + ACTIONS  # angular velocity in the trunk's frame, rad/s
GRAVITY: Final = GYRO + 3  # world -z in the trunk's frame, unit vector
OBSERVATIONS: Final = GRAVITY + 3

# float32 on purpose: the factor the contract applies is double(float32(0.05)).
OBS_SCALE: Final[NDArray[np.float32]] = np.repeat(
    np.array([1, 0.05, 1, 0.25, 1], np.float32), [ACTIONS, ACTIONS, ACTIONS, 3, 3]
)
OBS_SCALE.flags.writeable = False

NOISE: Final = 7
"""Sensor noise values per observation: gyro (3), then orientation quaternion (4)."""
