"""What a task gets wrong is told in its own terms, with the line where it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from written_tasks import CODE, assert_equal, line_of, write

from mujoco_vecenv.engine.envs import TaskEnvs
from mujoco_vecenv.engine.task import TaskError
from mujoco_vecenv.tasks import make_task
from mujoco_vecenv.vector.process import WorkerError
from mujoco_vecenv.vector.task_vec_env import TaskVecEnv


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
