"""Compiled code: which is kept for the next run, and its arithmetic beside plain Python's."""

import importlib.util
import os
import subprocess
import sys
from math import asin, atan2, cos, exp, log, sin, sqrt, tan, tanh
from pathlib import Path

import numpy as np
import pytest
from written_tasks import assert_equal, write

from mujoco_vecenv.engine import fingerprint, loops
from mujoco_vecenv.engine.generators import address_of
from mujoco_vecenv.engine.loops import compile_loop

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
