"""What a task's author is promised: errors in the task's own terms, and compiled equal to plain.

Each test writes a small task into a folder: CODE, with what the test changes.
"""

import importlib.util
import os
import re
import subprocess
import sys
from math import asin, atan2, cos, exp, log, sin, sqrt, tan, tanh
from pathlib import Path

import mujoco
import numpy as np
import pytest

from mujoco_vecenv.engine import fingerprint, loops
from mujoco_vecenv.engine.actions import ActionError
from mujoco_vecenv.engine.envs import TaskEnvs
from mujoco_vecenv.engine.generators import address_of
from mujoco_vecenv.engine.loops import compile_loop
from mujoco_vecenv.engine.task import TaskError
from mujoco_vecenv.engine.twin import TaskEnv
from mujoco_vecenv.tasks import make_task
from mujoco_vecenv.vector.process import WorkerError
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
        (
            "",
            {"columns": "{'xpos': (float, 1)}"},
            "",
            "column 'xpos' needs another name: it is taken",
        ),
        (
            "",
            {"columns": "{'obs': (float, 1)}"},
            "",
            "column 'obs' needs another name: it is taken",
        ),
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
            "reward() ({}) failed: AttributeError: 'record' object has no attribute 'wieght'",
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
        ("", {"columns": "{'empty': (float, 0)}"}, "", "column 'empty' holds nothing, got (<class"),
        ("", {"stage": "'vel'"}, "", "stage must be a mujoco.mjtStage or None, got 'vel'"),
        ("", {"observation_dtype": "np.float16"}, "", "must be np.float64 or np.float32, got"),
    ],
)
def test_what_is_refused_in_plain_python(tmp_path, code, fields, where, message):
    """Before anything is compiled."""
    path = write(tmp_path, code, **fields)
    with pytest.raises(TaskError) as caught:
        TaskEnvs(make_task(path), 2, 1)
    assert str(caught.value).startswith("task swing: ")
    assert message.format(line_of(path, where) if where else "") in str(caught.value)


@pytest.mark.parametrize(
    ("code", "where", "message"),
    [
        (
            "def reward(qpos):\n    return np.clip(qpos[0], -1.0, 1.0)",
            "np.clip",
            "reward() ({}): No implementation of function Function(<function clip at ",
        ),
        (
            "def helper(x):\n    return {}[x]\n\ndef reward(qpos):\n"
            "    return helper(qpos[0]) if qpos[0] > 9 else 0.0",
            "{}[x]",
            "helper() ({}): ",
        ),
        (
            "WEIGHTS = {'tilt': 1.0}\n\ndef reward(qpos):\n    return WEIGHTS['tilt']",
            "return WEIGHTS",
            "reward() ({}): Untyped global name 'WEIGHTS': Cannot determine Numba type of <class "
            "'dict'>",
        ),
        (
            "import task_helpers\n\ndef reward(qpos):\n    return task_helpers.double(qpos[0])",
            "task_helpers.double",
            "reward() ({}): Unknown attribute 'double' of type Module(<module 'task_helpers' from ",
        ),
        (
            "def reward(xpos):\n    if xpos[0, 0] > 9:\n        xpos[0, 0] = 9\n    return 0.0",
            "xpos[0, 0] = 9",
            "reward() ({}): No implementation of function Function(<built-in function setitem>) "
            "found for signature: setitem(readonly array(float64, 2d, C), ",
        ),
        (
            "def reward(qpos):\n    return float(f'{qpos[0]:.3f}')",
            "float(f'",
            "reward() ({}): format spec in f-strings not supported",
        ),
    ],
)
def test_what_numba_refuses(tmp_path, monkeypatch, code, where, message):
    """With the function, the line, and the reason."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "task_helpers.py").write_text("def double(x):\n    return 2 * x\n")
    path = write(tmp_path, code)
    with pytest.raises(TaskError) as caught:
        TaskEnvs(make_task(path), 2, 1)
    expected = "task swing: Numba cannot compile " + message.replace("{}", line_of(path, where), 1)
    assert str(caught.value).startswith(expected)


@pytest.mark.parametrize("backend", ["sync", "process", "batch"])
def test_errors_after_the_rehearsal_name_the_line_too(tmp_path, backend):
    code = (
        "def reset(rng, qpos, params):\n    qpos[0] = rng.uniform(0, 1)\n"
        "    if qpos[0] > params.most:\n        raise ValueError('too much')"
    )
    path = write(tmp_path, code, params="{'most': options['most']}", episode_steps=1)
    first = np.random.default_rng(0).uniform(0, 1, 50)  # the rehearsal has the same seed
    later = (
        f"task swing: reset() ({line_of(path, 'raise ValueError')}) failed: ValueError: too much"
    )
    with TaskVecEnv(path, 1, backend=backend, most=(first[0] + 1) / 2) as envs:
        until = next(k for k, x in enumerate(first) if x > (first[0] + 1) / 2)
        for _ in range(until - 1):
            envs.step([[0.0]])
        error = WorkerError if backend == "process" else TaskError
        with pytest.raises(error, match=re.escape(later)):
            envs.step([[0.0]])
        with pytest.raises(RuntimeError, match="is closed, because a call failed"):
            envs.step([[0.0]])


def test_indices_are_looked_at_where_numba_is_told_to(tmp_path):
    """Even if the same code has been kept without."""
    path = write(
        tmp_path,
        "def control(elapsed, action, ctrl):\n    ctrl[0 if elapsed < 5 else 2] = action[0]",
        control="control",
    )
    code = (
        "from mujoco_vecenv.vector.task_vec_env import TaskVecEnv\n"
        f"envs = TaskVecEnv({path!r}, 1)\n"
        "for _ in range(5):\n    envs.step([[0.0]])\n"
        "print('so far')\n"
        "envs.step([[0.0]])\n"
    )
    for check, status in ((None, 0), ("1", 1)):
        env = {name: v for name, v in os.environ.items() if name != "NUMBA_CACHE_DIR"}
        env |= {"XDG_CACHE_HOME": str(tmp_path)} | ({"NUMBA_BOUNDSCHECK": check} if check else {})
        command = [sys.executable, "-c", code]
        ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert ran.stdout.startswith("so far\n")
        assert ran.returncode == status
    place = line_of(path, "def control")
    assert f"task swing: one of control() ({place}) failed: IndexError: index is out" in ran.stderr


def test_what_numba_refuses_of_a_reset(tmp_path):
    code = "def reset(rng, qpos):\n    qpos[0] = rng.choice([1.0, 2.0])"
    path = write(tmp_path, code, compile_reset=True)
    with pytest.raises(TaskError) as caught:
        TaskEnvs(make_task(path), 2, 1)
    expected = f"task swing: Numba cannot compile reset() ({line_of(path, 'rng.choice')}): "
    assert str(caught.value).startswith(expected)
    code = "def reset(rng, fields):\n    pass"
    fields = {"compile_reset": True, "model_fields": "('body_mass',)"}
    path = write(tmp_path, code, name="other", **fields)
    with pytest.raises(TaskError, match=r"which a compiled reset\(\) cannot take: name"):
        make_task(path)


def test_a_compiled_reset_writes_columns_and_goes_on_drawing(tmp_path):
    """Records, integers and arrays of them, from one stream, in whatever order episodes end."""
    path = write(
        tmp_path,
        """
KIND = np.dtype([("goal", float, 2), ("turns", np.int64)], align=True)

def reset(rng, qpos, qvel, task_of_mine, table, params):
    qpos[0] = params.lean * rng.uniform(-1.0, 1.0)
    qvel[0] = rng.normal(0.0, 0.1)
    task_of_mine.goal[:] = rng.standard_normal(2)
    task_of_mine.turns = rng.integers(1, 5)
    for k in range(len(table)):
        table[k, 1] = rng.random()

def terminated(qpos, task_of_mine, elapsed):
    return elapsed >= task_of_mine.turns

def observe(qpos, qvel, task_of_mine, table, obs):
    obs[0] = qpos[0]
    obs[1] = qvel[0]
    obs[2] = task_of_mine.goal[1]
    obs[3] = table.sum()
    table[0, 0] += 1.0
""",
        compile_reset=True,
        terminated="terminated",
        observations="4",
        params="{'lean': 0.3}",
        columns="{'task_of_mine': KIND, 'table': (np.float32, (3, 2))}",
    )
    assert_equal(path, 60, n=5)
    assert_equal(path, 60, n=5, dtype=np.float64)


def test_numba_does_not_say_where_a_record_lacks_an_attribute(tmp_path):
    path = write(
        tmp_path,
        "def reward(qpos, info):\n    if qpos[0] > 9:\n        info.nope = 1\n    return 0.0",
    )
    with pytest.raises(TaskError) as caught:
        TaskEnvs(make_task(path), 2, 1)
    places = f"{line_of(path, 'def reward')}), observe() ({line_of(path, 'def observe')})"
    assert str(caught.value) == (
        f"task swing: Numba cannot compile one of reward() ({places}: there is no attribute 'nope'"
    )


def test_how_a_task_can_be_no_task(tmp_path):
    path = write(tmp_path)
    source = Path(path).read_text()
    with pytest.raises(ValueError, match=r"unknown task: there is no file '.*nowhere\.py'"):
        make_task("nowhere.py")
    other = tmp_path / "other.py"
    other.write_text(CODE)
    with pytest.raises(ValueError, match=r"other\.py' is no task: it has no function make\(\)"):
        make_task(str(other))
    other.write_text("def make():\n    return 7\n")
    with pytest.raises(TaskError, match=r"other\.py: make\(\) must return a Task, got 7"):
        make_task(str(other))
    threads = tmp_path / "threads.py"
    threads.write_text(source.replace("make(**options)", "make(threads=2)"))
    with pytest.raises(TaskError, match=r"has an option 'threads', a name that belongs to the"):
        make_task(str(threads))
    strict = tmp_path / "strict.py"
    strict.write_text(source.replace("make(**options)", "make(length=1.0)"))
    with pytest.raises(TypeError, match=r"unknown option 'lenght' \(did you mean 'length'\?\)"):
        make_task(str(strict), lenght=2.0)


# --- what holds -----------------------------------------------------------------------------------

EVERYTHING = """
from math import exp

SHIFT = np.array([0.5, -0.25])


def tilt(angle, gain=2.0):
    return gain * swing(angle)


def swing(angle):
    return np.cos(angle)


def closing_over(scale):
    def inner(x):
        return x * scale

    def describe(qpos, elapsed, body, memory, info):
        info.angle = inner(qpos[0])
        info.count = elapsed
        info.steps = memory.steps
        info.both[0] = memory.speeds[1]
        info.both[1] = body[0]

    return describe


def control(action, qvel, ctrl, memory, body):
    ctrl[0] = action[0] + SHIFT[1]
    memory.speeds[1] = qvel[0]
    memory.steps += 1
    body[1] += 1.0


def reward(qpos, action, params, memory, body, elapsed, info):
    info.action = action[0]
    if qpos[0] > 0.2:
        info.often = exp(qpos[0])
    total = params.weights[1, 0] * tilt(qpos[0]) + SHIFT[0] * body[1]
    if params.twice:
        total += params.count * memory.speeds[1]
    return total / (elapsed + params.half)


def terminated(qpos, params):
    return params.half * qpos[0] > 0.4


def observe(qpos, qvel, memory, body, params, obs):
    obs[0] = qpos[0]
    obs[1] = qvel[0]
    obs[2] = memory.steps
    obs[3:5] = params.weights[0]
    obs[5] = body[1]
"""

EVERYTHING_FIELDS = {
    "observations": "6",
    "control": "control",
    "terminated": "terminated",
    "describe": "closing_over(3.0)",
    "episode_steps": "20",
    "params": "{'half': 0.5, 'twice': True, 'count': 2, 'weights': np.arange(4.0).reshape(2, 2)}",
    "columns": "{'body': (float, 2), 'memory': [('steps', np.int32), ('speeds', float, 3)]}",
    "info": "{'angle': float, 'count': int, 'steps': np.int32, 'both': (float, 2), "
    "'action': 'action', 'often': float}",
    "reset_info": "('count', 'steps')",
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_everything_at_once(tmp_path, dtype):
    """Columns, records, params, helpers, defaults, closures and infos, over many episodes."""
    path = write(
        tmp_path, EVERYTHING, **EVERYTHING_FIELDS, observation_dtype=f"np.{dtype}", name=f"a{dtype}"
    )
    assert_equal(path, dtype=np.float32)
    assert_equal(path, dtype=np.float64)
    env = TaskEnv(make_task(path))
    obs, info = env.reset(seed=0)
    assert obs.dtype == dtype
    assert info == {"count": 0, "steps": 0}
    for _ in range(2):
        for step in range(1, 21):
            before = env.data.qvel[0]
            obs, _, _, truncated, info = env.step(np.zeros(1, np.float32))
            assert info["steps"] == info["count"] == obs[2] == obs[5] == step
            assert info["both"].tolist() == [before, 0.0]
            assert (info["often"] != 0) == (env.data.qpos[0] > 0.2)
            assert truncated == (step == 20)
        obs, _ = env.reset()
        assert obs[[2, 5]].tolist() == [0, 0], "columns are zero again"


def test_any_name_will_do_for_a_column(tmp_path):
    names = ("i", "k", "j", "ids", "over", "limit", "state", "rewards", "truncated", "loop")
    names += ("table", "first", "addresses", "no_info", "bytes_i", "kind_state", "borrowed", "do_0")
    code = f"""
def control(action, ctrl, {", ".join(names)}):
    ctrl[0] = action[0]
    {"; ".join(f"{name}[0] += {n}" for n, name in enumerate(names, 1))}

def observe({", ".join(names)}, obs):
    {"; ".join(f"obs[{n}] = {name}[0]" for n, name in enumerate(names))}
"""
    path = write(
        tmp_path,
        code,
        control="control",
        observations=str(len(names)),
        columns=str(dict.fromkeys(names, ("float", 1))),
    )
    assert_equal(path, 5)
    env = TaskEnv(make_task(path))
    env.reset(seed=0)
    env.step([0.0])
    obs, *_ = env.step([0.0])
    assert obs.tolist() == [2.0 * n for n in range(1, len(names) + 1)]


def test_division_by_zero_is_infinite(tmp_path):
    path = write(
        tmp_path,
        "def reward(qpos, params):\n    return params.a / (qpos[0] - qpos[0])",
        params="{'a': 2.0}",
    )
    with np.errstate(divide="ignore"):
        assert_equal(path, 3)
        env = TaskEnv(make_task(path))
        env.reset(seed=0)
        assert env.step([0.0])[1] == np.inf


def test_actions_without_limits(tmp_path):
    path = write(tmp_path, action_low="[-np.inf]", action_high="[np.inf]")
    assert_equal(path, 3)
    with TaskVecEnv(path, 1) as envs:
        assert (envs.low, envs.high) == (-np.inf, np.inf)


def test_a_keyframe(tmp_path):
    path = write(tmp_path, "def reset(rng):\n    pass", keyframe="'up'", episode_steps="5")
    assert_equal(path, 12)
    env = TaskEnv(make_task(path))
    for _ in range(2):
        assert env.reset(seed=0)[0].tolist() == [3.0, 0.5]
        env.step([1.0])


LOOK = """
def observe(qpos, xpos, sensordata, qacc, site_xpos, actuator_velocity, obs):
    obs[0] = qpos[0]
    obs[1] = qacc[0]
    obs[2] = actuator_velocity[0]
    obs[3:6] = site_xpos[0]
    obs[6:15] = sensordata
"""


@pytest.mark.parametrize("stage", ["None", "POS", "VEL", "ACC"])
def test_stages(tmp_path, stage):
    """Derived fields are a physics step behind, but for what a stage computes anew."""
    field = "None" if stage == "None" else f"mujoco.mjtStage.mjSTAGE_{stage}"
    path = write(tmp_path, LOOK, stage=field, observations="15")
    assert_equal(path, 20)
    env = TaskEnv(make_task(path))
    env.reset(seed=0)
    model = mujoco.MjModel.from_xml_string(PENDULUM)
    behind, anew = mujoco.MjData(model), mujoco.MjData(model)
    behind.qpos[:] = env.data.qpos
    for action in (1.5, -0.5, 2.0):
        obs, *_ = env.step([action])
        behind.ctrl[:] = action
        mujoco.mj_step(model, behind, 2)
        mujoco.mj_copyState(model, behind, anew, mujoco.mjtState.mjSTATE_INTEGRATION)
        mujoco.mj_forward(model, anew)
        pos, vel, acc = (
            anew if stage in stages else behind
            for stages in (("POS", "VEL", "ACC"), ("VEL", "ACC"), ("ACC",))
        )
        assert (behind.site_xpos != anew.site_xpos).any()
        assert (behind.sensordata != anew.sensordata).all() or not behind.sensordata.all()
        assert obs[0] == behind.qpos[0]
        assert obs[1] == acc.qacc[0]
        assert obs[2] == vel.actuator_velocity[0]
        assert obs[3:6].tolist() == pos.site_xpos[0].tolist()
        assert obs[6:9].tolist() == pos.sensordata[:3].tolist()
        assert obs[9:12].tolist() == vel.sensordata[3:6].tolist()
        assert obs[12:15].tolist() == acc.sensordata[6:9].tolist()


FORCES = """
def reset(rng, qpos):
    qpos[2] -= 0.01


def reward(cfrc_ext):
    return cfrc_ext[2, 5]


def observe(cfrc_ext, obs):
    obs[:] = cfrc_ext[2]
"""


@pytest.mark.parametrize("integrator", ["Euler", "RK4", "implicitfast"])
def test_contact_forces(tmp_path, integrator):
    """They are what mj_rnePostConstraint gives after the step, and zero when an episode begins."""
    xml = BOX.replace("<option ", f'<option integrator="{integrator}" ')
    path = write(tmp_path, FORCES, xml, observations="6", episode_steps="20")
    assert_equal(path, 45)
    model = mujoco.MjModel.from_xml_string(xml)
    data = mujoco.MjData(model)
    env = TaskEnv(make_task(path))
    obs, _ = env.reset(seed=0)
    assert obs.tolist() == [0.0] * 6
    data.qpos[2] -= 0.01
    most = 0.0
    for _ in range(20):
        obs, *_ = env.step([])
        mujoco.mj_step(model, data, 2)
        mujoco.mj_rnePostConstraint(model, data)
        assert obs.tolist() == data.cfrc_ext[2].tolist()
        most = max(most, obs[5])
    assert most > 10, "the box has hit the floor"


RANDOMIZED = """
def reset(rng, qpos, qvel, body_mass, geom_friction):
    qpos[0] = rng.uniform(-1, 1)
    qvel[1] = 1.0
    body_mass[2] *= rng.uniform(0.5, 2.0)
    geom_friction[2, 0] = rng.uniform(0.1, 1.0)


def control(action, xfrc_applied, mocap_pos, time):
    xfrc_applied[2, 0:3] = action
    mocap_pos[0, 2] = 1 + time


def observe(qpos, mocap_pos, xpos, obs):
    obs[0:7] = qpos
    obs[7:10] = mocap_pos[0]
    obs[10:13] = xpos[1]
"""

RANDOMIZED_FIELDS = {
    "observations": "13",
    "control": "control",
    "episode_steps": "15",
    "model_fields": "('body_mass', 'geom_friction')",
    "action_low": "np.full(3, -5.0)",
    "action_high": "np.full(3, 5.0)",
}


@pytest.mark.parametrize("compiled", [False, True])
def test_model_fields_a_free_joint_and_fields_of_many_dimensions(tmp_path, compiled):
    """Each environment has masses and frictions of its own, drawn anew from the model's."""
    path = write(tmp_path, RANDOMIZED, BOX, **RANDOMIZED_FIELDS, compile_reset=compiled)
    assert_equal(path, 50)
    task = make_task(path)
    env = TaskEnv(task)
    nominal = env.model.body_mass[2]
    for seed in (3, 4):
        env.reset(seed=seed)
        draws = np.random.default_rng(seed).uniform([-1, 0.5, 0.1], [1, 2.0, 1.0])
        assert env.data.qpos[0] == draws[0]
        assert env.model.body_mass[2] == nominal * draws[1]
        assert env.model.geom_friction[2, 0] == draws[2]
    obs, *_ = env.step([1.0, 2.0, 3.0])
    assert env.data.xfrc_applied[2].tolist() == [1, 2, 3, 0, 0, 0]
    assert obs[7:10].tolist() == [0, 0, 1]
    assert obs[10:13].tolist() == [0, 0, 1]


def test_threads_do_not_matter(tmp_path):
    path = write(tmp_path, RANDOMIZED, BOX, **RANDOMIZED_FIELDS)
    taken = []
    for threads in (1, 2, 5):
        with TaskVecEnv(path, 5, threads=threads, allow_overcommit=True) as envs:
            taken.append(steps(envs, 30))
    assert taken[0] == taken[1] == taken[2]


def test_stepping_some_leaves_the_others_alone(tmp_path):
    path = write(tmp_path, EVERYTHING, **EVERYTHING_FIELDS)
    task = make_task(path)
    some, every = (TaskEnvs(task, 4, 2) for _ in range(2))
    for envs in (some, every):
        for i in range(4):
            envs.seed(i, i)
        envs.begin(envs.all, np.empty((4, 6)), task.new_infos(4))
    actions = np.random.default_rng(0).uniform(-2, 2, (4, 1))
    ids = np.array([1, 3])
    others = [0, 2]
    before = some.sims.rows[others].copy()
    step, whole = some.step(actions, ids), every.step(actions)
    assert some.sims.rows[ids].tobytes() == every.sims.rows[ids].tobytes()
    assert some.sims.rows[others].tobytes() == before.tobytes()
    assert some.elapsed.tolist() == [0, 1, 0, 1]
    for name, column in some.columns.items():
        assert column[ids].tobytes() == every.columns[name][ids].tobytes()
        assert not any(column[others].tobytes())
    for name in ("obs", "rewards", "terminated", "truncated", "infos"):
        ours, theirs = getattr(step, name), getattr(whole, name)
        assert repr(ours[ids]) == repr(theirs[ids])
        assert repr(ours[others]) == repr(np.zeros_like(ours[others]))


@pytest.mark.parametrize(
    ("code", "xml", "fields"),
    [
        (EVERYTHING, PENDULUM, EVERYTHING_FIELDS),
        (RANDOMIZED, BOX, RANDOMIZED_FIELDS),
        (RANDOMIZED, BOX, RANDOMIZED_FIELDS | {"recompute_constants": "True"}),
    ],
    ids=["everything", "randomized", "constants"],
)
def test_backends_and_their_states_are_one(tmp_path, code, xml, fields):
    """A state taken from one backend goes on to the same bits on each, across new episodes."""
    path = write(tmp_path, code, xml, **fields)
    with (
        TaskVecEnv(path, 2, seed=5) as batch,
        TaskVecEnv(path, 2, seed=5, backend="process") as process,
        TaskVecEnv(path, 2, seed=5, backend="sync") as sync,
    ):
        envs = (batch, process, sync)
        assert bits(batch.reset()) == bits(process.reset()) == bits(sync.reset())
        taken = [steps(one, 33) for one in envs]
        assert taken[0] == taken[1] == taken[2]
        ends = sum("terminal_obs" in info for step in taken[0] for info in step[3])
        assert ends >= 2
        state = batch.get_state()
        assert bits(state) == bits(process.get_state()) == bits(sync.get_state())
        onward = steps(batch, 25, seed=1)
        for one in envs:
            steps(one, 3, seed=2)
            assert bits(one.set_state(state)) == bits(state["obs"])
            assert steps(one, 25, seed=1) == onward


def test_a_task_behind_gymnasium(tmp_path):
    gymnasium = pytest.importorskip("gymnasium")
    from mujoco_vecenv.vector import gymnasium_env

    path = write(tmp_path, EVERYTHING, **EVERYTHING_FIELDS)
    gymnasium_env.register("Everything-v0", path)
    envs = gymnasium.make_vec("mujoco_vecenv/Everything-v0", num_envs=2)
    single = gymnasium.make("mujoco_vecenv/Everything-v0")
    obs, _ = envs.reset(seed=7)
    first, _ = single.reset(seed=7)
    for action in np.linspace(-1, 1, 20, dtype=np.float32):
        assert obs[0].tobytes() == first.tobytes()
        obs, rewards, *_ = envs.step(np.full((2, 1), action))
        first, reward, *_ = single.step(np.full(1, action))
        assert rewards[0] == reward
    envs.close()


# --- what is kept of compiled code ----------------------------------------------------------------

KEPT = """
from task_other import LATER, late

GAIN = 1.0
TABLE = np.array([10.0, 20.0])


def helper(x, offset=100.0):
    return x + offset


def closed(value):
    def inner(x):
        return x + value

    return inner


plus = closed(1000.0)


def total():
    return plus(helper(GAIN + TABLE[1])) + late() + LATER
"""


def call(folder: Path, name: str, code: str) -> float:
    """Compile the function `total` of a module and call it."""
    (folder / f"{name}.py").write_text(f"import numpy as np\n{code}")
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return compile_loop("kept", "def loop():\n    return total()\n", {"total": module.total})()


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        ("GAIN = 1.0", "GAIN = 3.0", 2.0),
        ("x + offset", "x - offset", -200.0),
        ("offset=100.0", "offset=101.0", 1.0),
        ("[10.0, 20.0]", "[10.0, 21.0]", 1.0),
        ("np.array([10.0, 20.0])", "np.array([10, 20])", 0.0),
        ("closed(1000.0)", "closed(1001.0)", 1.0),
        ("return 1e4", "return 2e4", 1e4),
        ("LATER = 1e5", "LATER = 2e5", 1e5),
    ],
)
def test_a_change_of_the_source_is_noticed(tmp_path, monkeypatch, before, after, change):
    """In the file itself, and in what it imports."""
    monkeypatch.syspath_prepend(tmp_path)
    other = "LATER = 1e5\n\ndef late():\n    return 1e4\n"
    kept = []
    for old, new in ((before, before), (before, before), (before, after)):
        monkeypatch.delitem(sys.modules, "task_other", raising=False)
        (tmp_path / "task_other.py").write_text(other.replace(old, new))
        importlib.invalidate_caches()
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        kept.append(call(tmp_path, f"task_{len(kept)}", KEPT.replace(old, new)))
    assert kept == [111121.0, 111121.0, 111121.0 + change]


SCRIPT = """
import sys
import numpy as np
from mujoco_vecenv.vector.task_vec_env import TaskVecEnv
with TaskVecEnv(sys.argv[1], 1) as envs:
    print(envs.step(np.zeros((1, 1), np.float32))[1][0])
"""


def test_another_process_finds_what_was_compiled(tmp_path):
    """And compiles anew when a number in the task's file has changed."""
    path = write(tmp_path, "def reward():\n    return 1.5")
    env = {name: v for name, v in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    env |= {"XDG_CACHE_HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}

    def run() -> tuple[str, set[Path]]:
        command = [sys.executable, "-c", SCRIPT, path]
        out = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
        return out, set((tmp_path / "mujoco-vecenv").rglob("*.nb*"))

    out, kept = run()
    assert out == "1.5\n"
    assert len(kept) == 8, "an index and code of four loops"
    assert run() == (out, kept)
    Path(path).write_text(Path(path).read_text().replace("1.5", "2.5"))
    out, more = run()
    assert out == "2.5\n"
    assert len(more - kept) == 2, "only the loop with the reward"


def test_tasks_in_different_folders_have_helpers_of_their_own(tmp_path):
    paths = []
    for gain in (2.0, 3.0):
        folder = tmp_path / str(gain)
        folder.mkdir()
        (folder / "siblings.py").write_text(f"def tilt(x):\n    return {gain} * x\n")
        code = "from siblings import tilt\n\ndef reward(qpos):\n    return tilt(1.0)"
        paths.append(write(folder, code))
    for path, gain in zip(paths, (2.0, 3.0), strict=True):
        env = TaskEnv(make_task(path))
        env.reset(seed=0)
        assert env.step([0.0])[1] == gain
        with TaskVecEnv(path, 1) as envs:
            assert envs.step([[0.0]])[1] == gain
    assert sys.modules["siblings"].tilt(1.0) == 3.0, "it may be imported again"


def test_a_task_leaves_alone_what_else_it_imports(tmp_path, monkeypatch):
    """Packages of an environment under its folder among it, and what it imports later."""
    library = tmp_path / ".venv" / "library"
    library.mkdir(parents=True)
    (library / "elsewhere.py").write_text("known = []\n")
    (tmp_path / "beside.py").write_text("LEAN = 0.25\n")
    monkeypatch.syspath_prepend(library)
    path = write(
        tmp_path,
        "import beside\nimport elsewhere\n\nelsewhere.known.append(1)\n\n"
        "def later():\n    from beside import LEAN\n    return LEAN",
        params="{'lean': later()}",
    )
    assert make_task(path).params == {"lean": 0.25}
    assert importlib.import_module("elsewhere").known == [1]
    other = tmp_path / "other"
    other.mkdir()
    make_task(write(other))
    assert make_task(path).params == {"lean": 0.25}


def test_what_compiled_code_raises_names_its_functions(tmp_path):
    code = (
        "def reward(elapsed):\n    if elapsed == 4:\n        raise ValueError('too far')\n"
        "    return 0.0"
    )
    path = write(tmp_path, code)
    with TaskVecEnv(path, 1) as envs:
        for _ in range(4):
            envs.step([[0.0]])
        with pytest.raises(TaskError) as caught:
            envs.step([[0.0]])
    message = str(caught.value)
    assert message.startswith("task swing: one of reward() (")
    assert message.endswith(" failed: ValueError: too far")


def test_a_reset_sees_nothing_of_the_infos_before(tmp_path):
    path = write(
        tmp_path,
        "def reward(qpos, info):\n    info.tip = 7.0 + qpos[0]\n    return info.tip\n"
        "def observe(qpos, obs, info):\n    obs[0] = qpos[0]\n    obs[1] = info.tip",
        info={"tip": "float"},
        episode_steps=3,
    )
    assert_equal(path, 10)


def test_an_action_is_refused_even_where_it_would_not_be_used(tmp_path):
    envs = TaskEnvs(make_task(write(tmp_path)), 3, 1)
    obs = np.empty((3, envs.task.observations), envs.task.observation_dtype)
    envs.begin(envs.all, obs, envs.task.new_infos(3))
    before = envs.sims.rows.copy()
    actions = np.zeros((3, 1), np.float32)
    actions[2] = np.nan
    with pytest.raises(ActionError, match="environment 2, action 0 is nan"):
        envs.step(actions, np.array([0, 1]))
    assert envs.sims.rows.tobytes() == before.tobytes()


NESTED = "import package.inner\ndef reward():\n    return package.inner.GAIN"
JITTED = """
from numba import njit
@njit({})
def helper(x, y):
    return (x + y) - y
def reward(qpos):
    return helper(1.2345 + 0 * qpos[0], 1e16)
"""
ENUM = """
import enum
class Gain(enum.IntEnum):
    HIGH = {}
def reward():
    return Gain.HIGH.value * 1.0
"""
TUPLE = """
def closed():
    table = np.ones(2000)
    table[1000] = {}
    both = (table, table)
    def reward():
        return both[1][1000]
    return reward
reward = closed()
"""
NAMED = """
from collections import namedtuple
GAINS = namedtuple("GAINS", "low high")(1.0, {})
def reward():
    return GAINS.high
"""


@pytest.mark.parametrize(
    ("code", "one", "other", "rewards"),
    [
        (NESTED, 2.0, 5.0, (2.0, 5.0)),
        (JITTED, "", "fastmath=True", (2.0, 1.2345)),
        (ENUM, 3, 9, (3.0, 9.0)),
        (TUPLE, 1.0, 7.0, (1.0, 7.0)),
        (NAMED, 3.0, 4.0, (3.0, 4.0)),
    ],
    ids=["module in a package", "decorator", "enum", "tuple of arrays", "named tuple"],
)
def test_no_other_process_runs_what_has_changed(tmp_path, code, one, other, rewards):
    """Twice as it was, so that what was kept is found, and once changed."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    env = {name: v for name, v in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    env |= {"XDG_CACHE_HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    for value, reward in ((one, rewards[0]), (one, rewards[0]), (other, rewards[1])):
        (tmp_path / "package" / "inner.py").write_text(f"GAIN = {value or None}\n")
        path = write(tmp_path, code.replace("{}", str(value)))
        command = [sys.executable, "-c", SCRIPT, path]
        out = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
        assert float(out) == reward


def test_how_numpy_rounds_is_part_of_what_is_kept(monkeypatch):
    fingerprint._engine_digest.cache_clear()
    here = fingerprint._engine_digest()
    monkeypatch.setattr(fingerprint.numpy_bits, "rounding", lambda: (None, None))
    fingerprint._engine_digest.cache_clear()
    assert fingerprint._engine_digest() != here
    fingerprint._engine_digest.cache_clear()


def test_where_nothing_can_be_kept(tmp_path, monkeypatch):
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "swing.py"))  # a file
    path = write(tmp_path)
    assert_equal(path, 3, n=2)
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == ["swing.py", "swing.xml"]


def test_where_another_has_kept_it(tmp_path, monkeypatch):
    """Numba refuses to keep code where it can write no folder."""
    plain = loops.njit

    def refuse(*arguments, cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return plain(*arguments, **options)

    monkeypatch.setattr(loops, "njit", refuse)
    assert_equal(write(tmp_path), 3, n=2)


# --- arithmetic -----------------------------------------------------------------------------------


def test_functions_of_math_have_the_same_bits_in_compiled_code():
    """As the document promises; numpy's do not."""

    def evaluate(x, out):
        out[0] = sin(x)
        out[1] = cos(x)
        out[2] = tan(x)
        out[3] = exp(x)
        out[4] = tanh(x)
        out[5] = atan2(x, 0.5)
        out[6] = log(abs(x))
        out[7] = sqrt(abs(x))
        out[8] = asin(x / 20)

    loop = compile_loop(
        "math",
        "def loop(x, out):\n    for k in range(len(x)):\n        evaluate(x[k], out[k])\n",
        {"evaluate": evaluate},
    )
    values = np.random.default_rng(0).normal(size=5000) * 3
    compiled, plain = np.empty((2, len(values), 9))
    loop(values, compiled)
    for x, out in zip(values, plain, strict=True):
        evaluate(x, out)
    assert (compiled == plain).all(axis=0).all()


def test_generators_draw_the_same_in_compiled_code():
    """As Task.compile_reset promises."""

    def draw(rng, out):
        out[0] = rng.random()
        out[1] = rng.uniform(-0.3, 0.7)
        out[2] = rng.normal(0.1, 0.4)
        out[3] = rng.standard_normal()
        out[4] = rng.integers(0, 1000)
        out[5:7] = rng.random(2)
        out[7:10] = rng.uniform(-0.3, 0.1, 3)
        out[10:13] = rng.normal(0.0, 2.0, 3)
        out[13:16] = rng.standard_normal(3)
        out[16:19] = rng.integers(-5, 5, 3)

    loop = compile_loop(
        "draws",
        "def loop(addresses, out):\n"
        "    for k in range(len(out)):\n"
        "        draw(generator_at(addresses[k % len(addresses)]), out[k])\n",
        {"draw": draw},
    )
    ours, theirs = ([np.random.default_rng(seed) for seed in range(5)] for _ in range(2))
    compiled, plain = np.empty((2, 50_000, 19))
    loop(np.array([address_of(rng) for rng in ours]), compiled)
    for k, out in enumerate(plain):
        draw(theirs[k % len(theirs)], out)
    assert (compiled == plain).all(axis=0).all()
    for a, b in zip(ours, theirs, strict=True):
        assert a.bit_generator.state == b.bit_generator.state
