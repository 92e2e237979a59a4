"""CPU vector environments for robot learning in MuJoCo, equal to a plain reference to the bit."""

from mujoco_vecenv.microduck.config import MicroduckConfig
from mujoco_vecenv.microduck.draws import Episode
from mujoco_vecenv.microduck.episodes import Recording, load_recording, save_recording
from mujoco_vecenv.microduck.randomization import DomainRandomizer, DRConfig
from mujoco_vecenv.microduck.reference import MicroduckEnv
from mujoco_vecenv.vector.vec_env import VecEnv

try:
    from mujoco_vecenv.vector import gymnasium_env
except ModuleNotFoundError as error:  # Gymnasium is an extra
    if (error.name or "").partition(".")[0] != "gymnasium":
        raise
else:
    gymnasium_env.register_all()

__version__ = "0.1.0"
__all__ = [
    "DRConfig",
    "DomainRandomizer",
    "Episode",
    "MicroduckConfig",
    "MicroduckEnv",
    "Recording",
    "VecEnv",
    "load_recording",
    "save_recording",
]
