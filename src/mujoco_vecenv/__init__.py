"""CPU vector environments for robot learning in MuJoCo, equal to a plain reference to the bit."""

from mujoco_vecenv.microduck.reference import MicroduckEnv
from mujoco_vecenv.vector.vec_env import VecEnv

__version__ = "0.1.0"
__all__ = ["MicroduckEnv", "VecEnv"]
