"""`python -m mujoco_vecenv`: the command `mjvec`."""

import sys

from mujoco_vecenv.cli import main

sys.exit(main())
