"""What a task's author is promised: errors in the task's own terms, and compiled equal to plain.

Each test writes a small task into a folder: CODE, with what the test changes.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import mujoco
import numpy as np
import pytest

from mujoco_vecenv.engine.envs import TaskEnvs
from mujoco_vecenv.engine.task import TaskError
from mujoco_vecenv.engine.twin import TaskEnv, rehearse
from mujoco_vecenv.tasks import make_task
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


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "fields", "where", "message"),
    [
        (
            "def reward(qpso):\n    return 0.0",
            {},
            "def reward(qpso)",
            "reward() ({}) has the argument 'qpso', which is neither a field of MjData nor a "
            "column (did you mean 'qpos'?)",
        ),
        (
            "def control(speeed, ctrl):\n    pass",
            {"control": "control", "columns": "{'speed': (float, 1)}"},
            "def control",
            "control() ({}) has the argument 'speeed', which is neither a field of MjData nor a "
            "column (did you mean 'speed'?)",
        ),
        (
            "def control(xpos, ctrl):\n    pass",
            {"control": "control"},
            "def control",
            "control() ({}) has the argument 'xpos', which follows from the state, which has yet "
            "to change: read it in describe() and keep what you need in a column",
        ),
        (
            "def observe(subtree_linvel, obs):\n    pass",
            {},
            "def observe(sub",
            "observe() ({}) has the argument 'subtree_linvel', which a step does not compute: a "
            "sensor in the model might",
        ),
        (
            "def observe(action, obs):\n    pass",
            {},
            "def observe(action",
            "observe() ({}) has the argument 'action', which is not for observe()",
        ),
        (
            "def reward(body_mass):\n    return 0.0",
            {"model_fields": "('body_mass',)"},
            "def reward(body_mass",
            "reward() ({}) has the argument 'body_mass', which is not for reward()",
        ),
        (
            "def reward(qpos=None):\n    return 0.0",
            {},
            "def reward(qpos=",
            "reward() ({}) must have plain arguments, not qpos=None",
        ),
        ("", {"reward": "len"}, "", "reward must be a plain function, got <built-in function len>"),
        ("", {"model": "Path('nowhere.xml')"}, "", "there is no model 'nowhere.xml'"),
        ("", {"substeps": "0"}, "", "substeps must be 1 or more, got 0"),
        ("", {"columns": "{'xpos': (float, 1)}"}, "", "column 'xpos' needs another name: it is taken"),
        ("", {"columns": "{'obs': (float, 1)}"}, "", "column 'obs' needs another name: it is taken"),
        ("", {"columns": "{'a': 'flaot'}"}, "", "column 'a' is 'flaot', no numpy dtype"),
        ("", {"info": "{'a': 'flaot'}"}, "", "info 'a' is 'flaot', no numpy dtype"),
        (
            "",
            {"params": "{'mean': 1.0}"},
            "",
            "param 'mean' needs another name: NumPy's records have an attribute of that name",
        ),
        (
            "",
            {"columns": "{'a': [('item', float)]}"},
            "",
            "field 'item' of column 'a' needs another name: NumPy's records have an attribute of "
            "that name",
        ),
        (
            "",
            {"info": "{'size': float}"},
            "",
            "info 'size' needs another name: NumPy's records have an attribute of that name",
        ),
        ("", {"reset_info": "('speed',)"}, "", "reset_info 'speed' is no key of info"),
        (
            "",
            {"model_fields": "('body_mas',)"},
            "",
            "'body_mas' in model_fields is no field of MjModel that an environment can have of its "
            "own (did you mean 'body_mass'?)",
        ),
    ],
)
def test_what_is_refused_when_a_task_is_made(tmp_path, code, fields, where, message):
    path = write(tmp_path, code, **fields)
    with pytest.raises((TaskError, ValueError)) as caught:
        make_task(path)
    place = line_of(path, where) if where else ""
    assert str(caught.value) == "task swing: " + message.format(place)


@pytest.mark.parametrize(
    ("code", "fields", "where", "message"),
    [
        (
            "",
            {"observations": "3"},
            "",
            "observe() left obs[2] unwritten, or NaN; observations=3",
        ),
        (
            "",
            {"observations": "1"},
            "obs[1] =",
            "observe() ({}) failed: IndexError: index 1 is out of bounds for axis 0 with size 1",
        ),
        (
            "def helper(x):\n    return x[7]\n\ndef reward(qpos):\n    return helper(qpos)",
            {},
            "x[7]",
            "helper() ({}) failed: IndexError: index 7 is out of bounds for axis 0 with size 1",
        ),
        (
            "def reset(rng, qpos):\n    qpos[2] = 0",
            {},
            "qpos[2]",
            "reset() ({}) failed: IndexError: index 2 is out of bounds for axis 0 with size 1",
        ),
        (
            "def reward(params):\n    return params.wieght",
            {"params": "{'weight': 1.0}"},
            "params.wieght",
            "reward() ({}) failed: AttributeError: record array has no attribute wieght",
        ),
        (
            "def reward(qpos):\n    pass",
            {},
            "def reward",
            "reward() ({}) must return a float, got None",
        ),
        (
            "def reward(qpos):\n    return qpos",
            {},
            "def reward",
            "reward() ({}) must return a float, got array(",
        ),
        (
            "def terminated(qpos):\n    return 'no'",
            {"terminated": "terminated"},
            "def terminated",
            "terminated() ({}) must return a bool, got 'no'",
        ),
        (
            "",
            {"params": "{'surface': 'ice'}"},
            "",
            "param 'surface' must be a number or an array of numbers, got 'ice'",
        ),
        (
            "",
            {"action_low": "np.zeros(2)"},
            "",
            "action_low and action_high must be as long as each other, got shapes (2,) and (1,)",
        ),
        ("", {"keyframe": "'down'"}, "", "swing.xml has no keyframe 'down'; choose from up"),
        (
            "",
            {"columns": "{'count': int}"},
            "",
            "column 'count' would be a number, which functions could not write: make it an array, "
            "such as (int64, 1), or a field of a record",
        ),
    ],
)
def test_what_is_refused_in_plain_python(tmp_path, code, fields, where, message):
    """Before anything is compiled."""
    path = write(tmp_path, code, **fields)
    with pytest.raises(TaskError) as caught:
        TaskEnvs(make_task(path), 2, 1)
    assert str(caught.value).startswith("task swing: ")
    assert message.format(line_of(path, where) if where else "") in str(caught.value)


def test_what_numba_refuses(tmp_path):
    """With the function, the line, and the reason."""
    path = write(tmp_path, "def reward(qpos):\n    x = qpos[0]\n    return x if x > 0 else [x][0:].pop()")
    with pytest.raises(TaskError) as caught:
        TaskEnvs(make_task(path), 2, 1)
    print(caught.value)


def test_how_a_task_can_be_no_task(tmp_path):
    path = write(tmp_path)
    source = Path(path).read_text()
    with pytest.raises(ValueError, match="unknown task: there is no file '.*nowhere.py'"):
        make_task("nowhere.py")
    other = tmp_path / "other.py"
    other.write_text(CODE)
    with pytest.raises(ValueError, match="other.py' is no task: it has no function make()"):
        make_task(str(other))
    other.write_text("def make():\n    return 7\n")
    with pytest.raises(TaskError, match=r"other.py: make\(\) must return a Task, got 7"):
        make_task(str(other))
    strict = tmp_path / "strict.py"
    strict.write_text(source.replace("make(**options)", "make(length=1.0)"))
    with pytest.raises(TypeError, match=r"unknown option 'lenght' \(did you mean 'length'\?\)"):
        make_task(str(strict), lenght=2.0)
