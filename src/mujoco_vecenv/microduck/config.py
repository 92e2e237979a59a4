"""What a Microduck environment can be told, and the refusal of what it cannot do."""

import difflib
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from mujoco_vecenv.microduck.rewards import REWARDS

SUBSTEPS: Final = 10
"""Physics steps of 0.002 s in a control step of 0.02 s."""
STAND_HEIGHT: Final = 0.12
"""Trunk height of the STAND keyframe, m."""
FALL_HEIGHT: Final = 0.04
"""Trunk height below which the robot counts as fallen, m."""
PUSH_MARGIN: Final = 25
"""Control steps at both ends of an episode in which no push comes."""

ASSETS_VARIABLE: Final = "MUJOCO_VECENV_ASSETS"
"""Environment variable that stands in for `assets_dir`."""

SCENES: Final = {
    "groundcontact": "scene.xml",
    "walk": "scene_walk.xml",
    "groundcontact_backlash": "scene_backlash.xml",
    "walk_backlash": "scene_walk_backlash.xml",
    "rollers": "scene_rollers.xml",
}
"""Variant to the name of its MJCF file."""


@dataclass(frozen=True)
class MicroduckConfig:
    """The choices that define a Microduck environment, checked.

    Attributes:
        variant: the robot's model, a key of SCENES.
        episode_steps: control steps in an episode, at least 1.
        action_scale: how far an action of 1 moves a servo's target from STAND, rad.
        n_pushes: pushes in an episode; none if 0 or less, or if the episode is too short.
        push_speed: least and greatest speed a push adds to the trunk, m/s.
        init_noise: half-width of the uniform noise on the first joint angles, rad. Joint
            velocities get five times as much, rad/s.
        reward: the reward's version, a key of REWARDS.
        latency: control steps between an action and its effect, in [0, episode_steps).
        sensor_noise: add the model's sensor noise to gyro and orientation.
        dr: domain randomisation, or None.
        assets_dir: folder whose MJCF files, named as in SCENES, replace the packaged ones. None
            takes the environment variable MUJOCO_VECENV_ASSETS, or else the packaged files.

    Raises:
        TypeError, ValueError: a value of the wrong type or outside its range.
    """

    variant: str = "groundcontact"
    episode_steps: int = 250
    action_scale: float = 0.35
    n_pushes: int = 3
    push_speed: tuple[float, float] = (0.15, 0.45)
    init_noise: float = 0.02
    reward: str = "v1"
    latency: int = 0
    sensor_noise: bool = False
    dr: Any = None
    assets_dir: str | Path | None = None

    def __post_init__(self) -> None:
        check_choice("variant", self.variant, SCENES)
        check_choice("reward", self.reward, REWARDS)
        self._integer("episode_steps", 1)
        self._integer("n_pushes")
        self._integer("latency", 0)
        if self.latency >= self.episode_steps:
            raise ValueError(
                f"latency={self.latency} must be below episode_steps={self.episode_steps}: "
                "no action would ever take effect"
            )
        self._number("action_scale")
        self._number("init_noise")
        if self.init_noise < 0:
            raise ValueError(f"init_noise must be 0 or more, got {self.init_noise!r}")
        speeds = self.push_speed
        if not isinstance(speeds, Iterable) or isinstance(speeds, str) or len(tuple(speeds)) != 2:
            raise TypeError(f"push_speed must be two speeds (least, greatest), got {speeds!r}")
        least, greatest = (check_number("push_speed", speed) for speed in speeds)
        if not 0 <= least <= greatest:
            raise ValueError(f"push_speed must be 0 <= least <= greatest, got {speeds!r}")
        object.__setattr__(self, "push_speed", (least, greatest))
        if not isinstance(self.sensor_noise, bool):
            raise TypeError(f"sensor_noise must be True or False, got {self.sensor_noise!r}")
        if self.assets_dir is None:
            # Read here, once: a worker process may have been born with another environment.
            object.__setattr__(self, "assets_dir", os.environ.get(ASSETS_VARIABLE) or None)

    def _integer(self, name: str, least: int | None = None) -> None:
        object.__setattr__(self, name, check_integer(name, getattr(self, name), least))

    def _number(self, name: str) -> None:
        object.__setattr__(self, name, check_number(name, getattr(self, name)))

    @classmethod
    def from_keywords(cls, keywords: Mapping[str, Any], also: Iterable[str] = ()) -> Any:
        """Make a configuration from keywords, naming the closest one to any unknown.

        Args:
            keywords: names of attributes and their values.
            also: further keywords the caller accepts, for the suggestion.

        Raises:
            TypeError: an unknown keyword, or a value of the wrong type.
            ValueError: a value outside its range.
        """
        known = [f.name for f in fields(cls)]
        for name in keywords:
            if name not in known:
                raise TypeError(f"unknown keyword {name!r}{_closest(name, [*known, *also])}")
        return cls(**keywords)


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Raise ValueError unless value is one of the choices, naming the closest."""
    choices = list(choices)
    if value not in choices:
        raise ValueError(
            f"unknown {name} {value!r}{_closest(str(value), choices)}; "
            f"choose from {', '.join(choices)}"
        )


def check_integer(name: str, value: Any, least: int | None = None) -> int:
    """Return value as an int.

    Raises:
        TypeError: value is no integer.
        ValueError: value is below `least`.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if least is not None and value < least:
        raise ValueError(f"{name} must be {least} or more, got {value!r}")
    return int(value)


def check_number(name: str, value: Any) -> float:
    """Return value as a finite float.

    Raises:
        TypeError: value is no number.
        ValueError: value is NaN or infinite.
    """
    if isinstance(value, (bool, str)) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value!r}")
    return float(value)


def _closest(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""
