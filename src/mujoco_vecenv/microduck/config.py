"""What a Microduck environment can be told, and the refusal of what it cannot do."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from mujoco_vecenv.checks import (
    MOST,
    check_choice,
    check_integer,
    check_number,
    check_range,
    check_switch,
    closest,
)
from mujoco_vecenv.microduck.randomization import DRConfig
from mujoco_vecenv.microduck.rewards import REWARDS

TIMESTEP: Final = 0.002
"""Seconds in a physics step."""
SUBSTEPS: Final = 10
"""Physics steps in a control step."""
STAND_HEIGHT: Final = 0.12
"""Trunk height of the STAND keyframe, m."""
FALL_HEIGHT: Final = 0.04
"""Trunk height below which the robot counts as fallen, m."""
PUSH_MARGIN: Final = 25
"""Control steps at both ends of an episode in which no push comes."""

_MOST_STEPS: Final = 2**31 - 1

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
        dr: domain randomisation, drawn anew for each episode: None or False for none, True for
            `DRConfig()`, a DRConfig, a DomainRandomizer, or any object with the attributes of one
            of them. It may set the episode's latency, initial noise and sensor noise.
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
    dr: DRConfig | None = None
    assets_dir: str | Path | None = None

    def __post_init__(self) -> None:
        check_choice("variant", self.variant, SCENES)
        check_choice("reward", self.reward, REWARDS)
        self._integer("episode_steps", 1, _MOST_STEPS)
        self._integer("n_pushes")
        self._integer("latency", 0)
        if self.latency >= self.episode_steps:
            raise ValueError(
                f"latency={self.latency} must be below episode_steps={self.episode_steps}: "
                "no action would ever take effect"
            )
        self._number("action_scale")
        self._number("init_noise")
        if not 0 <= self.init_noise <= MOST:
            raise ValueError(f"init_noise must be 0 … {MOST:g}, got {self.init_noise!r}")
        object.__setattr__(self, "push_speed", check_range("push_speed", self.push_speed, 0))
        object.__setattr__(self, "sensor_noise", check_switch("sensor_noise", self.sensor_noise))
        dr = DRConfig.of(self.dr)
        object.__setattr__(self, "dr", dr)
        if dr is not None and dr.latency is not None and dr.latency[1] >= self.episode_steps:
            raise ValueError(
                f"dr: latency up to {dr.latency[1]} must be below episode_steps="
                f"{self.episode_steps}"
            )
        if not isinstance(self.assets_dir, str | Path | None):
            raise TypeError(f"assets_dir must be a path or None, got {self.assets_dir!r}")
        if self.assets_dir is None:
            # Read here, once: a worker process may have been born with another environment.
            object.__setattr__(self, "assets_dir", os.environ.get(ASSETS_VARIABLE) or None)

    def _integer(self, name: str, least: int | None = None, most: int | None = None) -> None:
        object.__setattr__(self, name, check_integer(name, getattr(self, name), least, most))

    def _number(self, name: str) -> None:
        object.__setattr__(self, name, check_number(name, getattr(self, name)))

    @classmethod
    def from_keywords(
        cls, keywords: Mapping[str, Any], also: Iterable[str] = ()
    ) -> "MicroduckConfig":
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
                raise TypeError(f"unknown keyword {name!r}{closest(name, [*known, *also])}")
        return cls(**keywords)
