"""Small tasks that tests write into a folder, and what compares their environments."""

from pathlib import Path

import numpy as np

from mujoco_vecenv.vector.task_vec_env import TaskVecEnv

PENDULUM = """
<mujoco>
  <option timestep="0.01"/>
  <worldbody>
    <body name="arm">
      <joint name="hinge" type="hinge" axis="0 1 0" damping="0.1"/>
      <geom type="capsule" fromto="0 0 0 0 0 -0.5" size="0.02"/>
      <site name="tip" pos="0 0 -0.5"/>
    </body>
  </worldbody>
  <actuator>
    <motor joint="hinge" ctrlrange="-2 2"/>
  </actuator>
  <sensor>
    <framepos objtype="site" objname="tip"/>
    <velocimeter site="tip"/>
    <framelinacc objtype="site" objname="tip"/>
  </sensor>
  <keyframe>
    <key name="up" qpos="3" qvel="0.5"/>
  </keyframe>
</mujoco>
"""

BOX = """
<mujoco>
  <option timestep="0.005"/>
  <worldbody>
    <geom name="floor" type="plane" size="2 2 0.1"/>
    <body name="mark" mocap="true"/>
    <body name="box" pos="0 0 0.12">
      <freejoint/>
      <geom name="idle" type="sphere" size="0.01" contype="0" conaffinity="0" mass="0"/>
      <geom name="box" type="box" size="0.1 0.1 0.1" euler="5 10 0"/>
    </body>
  </worldbody>
</mujoco>
"""
"""A box that falls on an edge. Nothing drives it."""

CODE = """
from pathlib import Path

import mujoco
import numpy as np

from mujoco_vecenv.engine.task import Task


def reset(rng, qpos):
    qpos[0] = rng.uniform(-0.5, 0.5)


def reward(qpos):
    return 1.0 - abs(qpos[0])


def observe(qpos, qvel, obs):
    obs[0] = qpos[0]
    obs[1] = qvel[0]
"""

FIELDS = {
    "name": "'swing'",
    "model": "Path(__file__).with_suffix('.xml')",
    "substeps": "2",
    "observations": "2",
    "reset": "reset",
    "reward": "reward",
    "observe": "observe",
}


def write(folder: Path, code: str = "", xml: str = PENDULUM, name: str = "swing", **fields) -> str:
    """Write a task and return its path.

    `code` goes after CODE, whose functions it may replace, and `fields` are the source of further
    fields of Task.
    """
    path = folder / f"{name}.py"
    path.with_suffix(".xml").write_text(xml)
    fields = ", ".join(f"{field}={source}" for field, source in (FIELDS | fields).items())
    path.write_text(f"{CODE}\n{code}\n\ndef make(**options):\n    return Task({fields})\n")
    return str(path)


def line_of(path: str, text: str) -> str:
    """Return where a task has a text for the last time: file:line."""
    lines = Path(path).read_text().splitlines()
    return f"{path}:{max(n for n, line in enumerate(lines, 1) if text in line)}"


def bits(value):
    """Return a value as something that is equal only if every bit of it is."""
    if isinstance(value, dict):
        return {name: bits(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [bits(item) for item in value]
    array = np.asarray(value)
    return array.dtype.str, array.shape, array.tobytes()


def steps(envs, count, seed=0, dtype=np.float32):
    """Take random steps and return the bits of all that came back."""
    rng = np.random.default_rng(seed)
    shape = (count, envs.n, len(envs.low))
    actions = rng.uniform(-2, 2, shape).astype(dtype)
    taken = []
    for action in actions:
        obs, rewards, done, infos = envs.step(action)
        taken.append(bits((obs, rewards, done, list(infos))))
    return taken


def assert_equal(path, count=60, n=3, dtype=np.float32, **options):
    """Compare compiled environments with plain Python, bit by bit; return their final state."""
    with (
        TaskVecEnv(path, n, backend="sync", **options) as plain,
        TaskVecEnv(path, n, threads=2, allow_overcommit=True, **options) as batch,
    ):
        assert bits(plain.reset()) == bits(batch.reset())
        for k, (ours, theirs) in enumerate(
            zip(steps(plain, count, dtype=dtype), steps(batch, count, dtype=dtype), strict=True)
        ):
            assert ours == theirs, f"step {k}"
        state = plain.get_state()
        assert bits(state) == bits(batch.get_state())
        return state
