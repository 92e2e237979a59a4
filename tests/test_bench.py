"""Benchmarks: arithmetic, verdicts and files. Never a speed."""

import json
import os
import sys
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

from mujoco_vecenv import cli
from mujoco_vecenv.bench import box, kinds, profile, record, report, task_windows, verdicts
from mujoco_vecenv.bench.windows import MODES, carried_window, mode_window
from mujoco_vecenv.microduck.config import MicroduckConfig
from mujoco_vecenv.train import run as training
from mujoco_vecenv.vector.task_vec_env import TaskVecEnv

TINY = MicroduckConfig(episode_steps=6, reward="v2")

TASK = "InvertedPendulum-v5"  # whose episodes soon end

PUSHED = '''
from pathlib import Path

from mujoco_vecenv.engine.task import Task

MODEL = """<mujoco><worldbody><body><joint name="hinge" axis="0 1 0"/><geom size="0.1"
pos="0 0 -1"/></body></worldbody><actuator><motor joint="hinge" CTRLRANGE/></actuator></mujoco>"""


def reset(rng, qpos):
    qpos[0] = rng.uniform(-0.1, 0.1)


def control(action, ctrl, qvel, lag, elapsed):
    lag[0] += 0.5 * (action[0] - lag[0])
    ctrl[0] = lag[0]
    if elapsed % 7 == 3:
        qvel[0] += 1.0


def reward(qpos):
    return -abs(qpos[0])


def terminated(qpos):
    return abs(qpos[0]) > 0.2


def observe(qpos, obs):
    obs[0] = qpos[0]


def make(ctrlrange='ctrlrange="-1 1"', model_fields=()):
    path = Path(__file__).with_suffix(".xml")
    path.write_text(MODEL.replace("CTRLRANGE", ctrlrange))
    return Task(
        name="pushed", model=path, substeps=3, observations=1, observe=observe, reward=reward,
        reset=reset, control=control, terminated=terminated, columns={"lag": (float, 1)},
        model_fields=model_fields,
    )
'''
"""A task's file, whose task writes more than controls between resets."""

STEADY = [100.0, 101, 99, 100, 100, 101, 99, 100, 101, 100, 99, 100]
DRIFTING = [100.0, 100, 99, 98, 97, 95, 93, 92, 91, 90, 89, 88]
TRENDING = [100.0, 102.5, 105, 105, 105, 105, 105, 105, 105, 105, 105, 105]
SCATTERED = [100.0, 92, 108, 94, 107, 91, 109, 92, 108, 93, 107, 92]


class NoBar:
    """A progress that keeps count."""

    def __init__(self):
        self.expected = self.done = 0

    def expect(self, windows):
        self.expected = windows

    def advance(self):
        self.done += 1


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setattr(box.time, "sleep", lambda seconds: None)

    def start(kind, **settings):
        return record.Run(kind, settings, NoBar())

    return start


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        (STEADY, []),
        (DRIFTING, ["unstable", "trending"]),
        (TRENDING, ["trending"]),
        ([100, 96.5, 94], ["trending"]),
        ([100, 98, 97], []),
        ([100, 104, 103, 105], []),
        ([100, 100, 89], ["unstable"]),
        ([100], []),
    ],
)
def test_reference_verdicts(rates, expected):
    assert verdicts.reference_verdicts(rates) == expected


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        (STEADY, (99, 101, "settled")),
        (DRIFTING, (88, 91, "falling")),
        (DRIFTING[::-1], (98, 100, "rising")),
        (TRENDING, (105, 105, "settled")),
        (SCATTERED, (92, 108, "scattered")),
        ([100, 90], (90, 100, "too short")),
        ([100, 90, 80, 70], (70, 90, "too short")),
        ([], (0, 0, "too short")),
    ],
)
def test_plateau(rates, expected):
    assert verdicts.plateau(rates) == expected


def test_ratios_are_medians_over_rounds():
    assert verdicts.median_ratio([100, 200, 400], [100, 100, 100]) == 2
    assert verdicts.median_ratio([100, 200, 900], [100, 100]) == 1.5


def test_amdahl():
    assert verdicts.amdahl(0, 1000, 8, 1) == 8000
    assert verdicts.amdahl(100, 900, 8, 1) == 8000
    assert verdicts.amdahl(100, 800, 8, 8) == 40_000
    assert verdicts.amdahl(100, 800, 8, 64) == 40_000  # no more cores than environments


@pytest.mark.parametrize("mode", MODES)
def test_a_window_is_an_episode_of_every_environment(mode):
    window = mode_window(mode, 3, 1, TINY)
    assert window() == window() == 18


@pytest.mark.parametrize("carried", [False, True])
def test_carried_windows(carried):
    assert carried_window(2, 1, TINY, carried)() == 12


@pytest.fixture
def short_windows(monkeypatch):
    monkeypatch.setattr(task_windows, "STEPS", 30)


@pytest.fixture
def task_file(tmp_path):
    path = tmp_path / "pushed.py"
    path.write_text(PUSHED)
    return str(path)


def record_of(envs, window):
    """Return the engine of environments, after the window, and its cues."""
    engine = task_windows.engine_of(envs)
    return engine, task_windows.record(engine, window)


def check_same_states(engine, cues):
    lean = task_windows.EngineLoop(engine, 2, cues)
    published = task_windows.EngineLoop(engine, 2, cues, engine.task.compiled_model)
    bare = task_windows.BareLoop(engine.task, 5, 2, cues)
    for loop in (lean, published, bare):
        assert loop() == loop() == 30 * engine.n
    running = engine.elapsed > 0  # the others' episodes began after the last step
    assert running.any()
    for loop in (lean, published):
        assert (loop.sims.rows[running] == engine.sims.rows[running]).all()
    for name in ("qpos", "qvel", *engine.task.reads):
        rows = np.stack([getattr(data, name) for data in bare.datas])
        assert (rows[running] == engine.sims.field(name)[running]).all(), name


@pytest.mark.parametrize("task", [TASK, "Ant-v5", "file"])
def test_the_loops_without_the_task_end_in_its_states(task, short_windows, task_file):
    envs = TaskVecEnv(task_file if task == "file" else task, 5)
    engine, cues = record_of(envs, task_windows.episodes_window(envs))
    written = [set(cue.written.tolist()) for cue in cues]
    assert len(cues) == 30
    assert written[0] == {0, 1, 2, 3, 4}
    assert any(written[1:])
    check_same_states(engine, cues)


def test_they_do_where_a_reset_takes_a_step(short_windows):
    envs = gymnasium.make_vec(f"mujoco_vecenv/{TASK}", 5)
    space = envs.single_action_space
    actions = task_windows.random_actions(envs.task, space.low, space.high, 30, 5)
    window = task_windows.vector_window(lambda: envs.reset(seed=0), envs.step, actions)
    engine, cues = record_of(envs, window)
    assert any(cue.ids is not None and len(cue.ids) < 5 for cue in cues)
    check_same_states(engine, cues)


def test_a_task_without_limits_or_with_physics_of_its_own_cannot_be_timed(task_file):
    with (
        TaskVecEnv(task_file, 2, ctrlrange="") as envs,
        pytest.raises(ValueError, match="task pushed: random actions need limits"),
    ):
        task_windows.episodes_window(envs)
    with TaskVecEnv(task_file, 2, model_fields=("body_mass",)) as envs:
        window = task_windows.episodes_window(envs)
        with pytest.raises(ValueError, match=r"physics of their own \(body_mass\)"):
            record_of(envs, window)


def test_windows_run_at_least_as_long_as_asked(run):
    run = run("layers")
    timed = run.timed(lambda: 5, 0.02)
    assert timed["seconds"] >= 0.02
    assert timed["env_steps"] % 5 == 0
    assert timed["env_steps"] > 5
    assert run.timed(lambda: 5, 0.0)["env_steps"] == 5


def test_contestants_take_turns_after_an_uncounted_round(run):
    run, order = run("layers"), []
    contestants = {name: lambda name=name: order.append(name) or 1 for name in "ab"}
    run.take_turns({"n": 1, "threads": 1}, contestants, rounds=3, seconds=0.0)
    assert order == ["a", "b", "a", "b", "b", "a", "a", "b"]
    assert [len(w) for w in run.rows[0]["windows"].values()] == [3, 3]


EVERY_KIND = {
    "sweep": {
        "threads": [1],
        "n": [2],
        "mode": "engine",
        "seconds": 0.01,
        "ref_seconds": 0.01,
        "allow_overcommit": False,
    },
    "layers": {"threads": [1], "n": [2], "rounds": 2, "seconds": 0.01, "allow_overcommit": False},
    "sustained": {
        "threads": 1,
        "n": 2,
        "windows": 3,
        "seconds": 0.01,
        "allow_overcommit": False,
    },
    "compare": {"workers": [1, 2], "rounds": 2, "seconds": 0.01},
    "randomization": {"threads": 1, "n": 2, "rounds": 2, "seconds": 0.01},
    "train": {"rounds": 1},
    "scale": {"n": [1, 2]},
    "profile": {"threads": [1], "n": [2], "steps": 20},
}


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_every_kind_leaves_a_record_tables_and_a_plot(kind, run, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "EVERY", 1)
    monkeypatch.setattr(training, "EVALUATION_EPISODES", 1)
    result = check_record(kind, run, TINY, EVERY_KIND[kind], tmp_path)
    if kind == "train":
        assert "equal, byte for byte" in report.summary(result)[0]
        broken = json.loads(json.dumps(result))
        broken["rows"][0]["digests"]["process"] = "another"
        assert "NOT EQUAL" in report.summary(broken)[0]


def test_waiting_takes_as_long_as_physics(monkeypatch):
    ticks = iter([10.0, 10.0002, 10.0004, 10.0006])
    monkeypatch.setattr(profile, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    profile._wait(500.0)(1)
    assert list(ticks) == []


TASK_KINDS = ["layers", "sustained", "compare", "scale", "profile"]


@pytest.mark.parametrize(
    ("kind", "mode"),
    [*(("sweep", mode) for mode in MODES), *((kind, None) for kind in TASK_KINDS)],
)
def test_every_kind_measures_any_task(kind, mode, run, tmp_path, short_windows):
    settings = EVERY_KIND[kind] | ({"mode": mode} if mode else {})
    result = check_record(kind, run, TASK, settings, tmp_path)
    for window in record.all_windows(result):
        assert window["env_steps"] % 30 == 0


def check_record(kind, run, subject, settings, tmp_path):
    """Run a kind and return its record, once it is known to be whole."""
    run = run(kind, **settings)
    getattr(kinds, kind)(run, subject, **settings)
    assert run.progress.done == run.progress.expected > 0
    result = run.finish(complete=True)
    path = tmp_path / "run.json"
    record.write(result, path)
    assert record.read(path) == json.loads(json.dumps(result))
    assert all(table.row_count > 0 for table in report.tables(result))
    assert all(
        value > 0 for name, value in report.row_values(result).items() if "draws" not in name
    )
    report.plot(result, tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 5000
    for field in ("command", "started", "finished", "machine", "settings", "rows", "warnings"):
        assert field in result
    table = report.comparison(result, result, ("one", "two"))
    assert table.row_count == len(report.row_values(result))
    with pytest.raises(ValueError, match="one and two measured nothing in common"):
        report.comparison(result, {**result, "rows": []}, ("one", "two"))
    return result


SUITE = {"n": 3, "threads": 1, "rounds": 2, "seconds": 0.01, "async_workers": 2}


def test_suite_without_envpool(run, tmp_path, short_windows, monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    result = check_record("suite", run, [TASK], SUITE, tmp_path)
    assert result["envpool"] is None
    row = result["rows"][0]
    assert row["task"] == TASK
    assert set(row["windows"]) == {"ours", "sync", "async", "batch", "engine"}
    for name, windows in row["windows"].items():
        assert all(w["env_steps"] % (60 if name == "async" else 90) == 0 for w in windows)
    assert "envpool: not installed" in report.tables(result)[0].caption


def test_suite_with_a_stand_in_for_envpool(run, tmp_path, short_windows, monkeypatch):
    made = []

    def make_gymnasium(task, **keywords):
        made.append((task, keywords))
        return gymnasium.make_vec(task, keywords["num_envs"], "sync")

    stand_in = SimpleNamespace(
        __version__="9.8",
        list_all_envs=lambda: [TASK, "Pong-v5"],
        make_gymnasium=make_gymnasium,
    )
    monkeypatch.setitem(sys.modules, "envpool", stand_in)
    result = check_record("suite", run, [TASK, "Reacher-v5"], SUITE, tmp_path)
    assert made == [(TASK, {"num_envs": 3, "batch_size": 3, "num_threads": 1, "seed": 0})]
    assert result["envpool"] == {
        "version": "9.8",
        "mujoco": "unknown",
        "num_threads": 1,
        "batch_size": 3,
        "tasks": [TASK],
    }
    assert [len(row["windows"]) for row in result["rows"]] == [6, 5]
    assert result["rows"][0]["windows"]["envpool"][0]["env_steps"] % 90 == 0
    measured, compared = report.tables(result)
    assert (
        "EnvPool 9.8, num_threads=1, batch_size=3, which steps MuJoCo unknown" in measured.caption
    )
    assert cells(measured)[4][1] == cells(compared)[3][1] == "–"


def test_arithmetic_of_the_suite():
    def windows(*steps):
        return [{"seconds": 2.0, "env_steps": step} for step in steps]

    result = {
        "kind": "suite",
        "settings": {"n": 8, "threads": 2, "async_workers": None},
        "gymnasium": "1.2.3",
        "envpool": None,
        "machine": {"mujoco": "4.5.6"},
        "warnings": [],
        "rows": [
            {
                "task": "A",
                "n": 8,
                "threads": 2,
                "windows": {
                    "ours": windows(2000, 4000, 9000),
                    "sync": windows(1000, 2000, 3000),
                    "async": windows(4000, 4000, 4000),
                    "batch": windows(6000, 1000),
                    "engine": windows(5000, 5000),  # interrupted
                },
            }
        ],
    }
    measured, compared = report.tables(result)
    assert cells(measured) == [["A"], ["2,000"], ["1,000"], ["2,000"], ["–"], ["1,750"], ["2,500"]]
    assert cells(compared) == [["A"], ["2.00"], ["1.00"], ["–"], ["2.17"], ["0.60"], ["2"]]
    assert "async with 8 processes" in measured.caption
    assert "Gymnasium 1.2.3" in measured.caption
    assert "MuJoCo 4.5.6" in measured.caption
    assert report.row_values(result)["ours / sync, A, n=8, threads=2"] == 2


def sweep_record(row_rates, reference_rates):
    def window(rate):
        return {"seconds": 2.0, "env_steps": 2 * rate}

    return {
        "kind": "sweep",
        "settings": {"mode": "env"},
        "rows": [
            {"n": 8, "threads": threads, "windows": {"env": [window(rate)]}}
            for threads, rate in row_rates.items()
        ],
        "reference": [window(rate) for rate in reference_rates],
        "warnings": [],
    }


def cells(table):
    return [list(column.cells) for column in table.columns]


def test_arithmetic_of_a_sweep():
    result = sweep_record({1: 1000, 2: 1800}, [900, 1100, 900])
    _, threads, rates, per_thread, speed_up, efficiency, reference = cells(report.tables(result)[0])
    assert threads == ["1", "2"]
    assert rates == ["1,000", "1,800"]
    assert per_thread == ["1,000", "900"]
    assert speed_up == ["1.00", "1.80"]
    assert efficiency == ["100.0%", "90.0%"]
    assert reference == ["1,000", "1,000"]
    assert report.summary(result) == ["the reference was unstable"]
    assert report.summary(sweep_record({1: 5}, [100, 101])) == ["the reference was steady"]


def test_ctrl_c_leaves_what_was_done(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(box.time, "sleep", lambda seconds: None)
    timed, count = record.Run.timed, []

    def interrupted(self, window, seconds):
        count.append(1)
        if len(count) == 8:
            raise KeyboardInterrupt
        return timed(self, lambda: 1, 0.0)

    monkeypatch.setattr(record.Run, "timed", interrupted)
    arguments = ["bench", "layers", "--n", "1", "--threads", "1", "--out", "half.json"]
    assert cli.main(arguments) == 130
    result = record.read(tmp_path / "half.json")
    assert result["complete"] is False
    assert sum(len(w) for w in result["rows"][0]["windows"].values()) == 4
    assert any("interrupted" in warning for warning in result["warnings"])
    assert (tmp_path / "half.png").exists()
    assert "interrupted" in capsys.readouterr().out


def test_show_prints_and_compares(tmp_path, capsys, run):
    for name in ("a", "b"):
        one = run("compare", **EVERY_KIND["compare"])
        row = {"n": 2, "threads": 2, "windows": {}}
        for backend, rate in (("process", 100), ("batch", 300 if name == "a" else 330)):
            row["windows"][backend] = [{"seconds": 1.0, "env_steps": rate}]
        row["windows"]["sync"] = [{"seconds": 1.0, "env_steps": 150}]
        one.rows.append(row)
        record.write(one.finish(True), tmp_path / f"{name}.json")
    files = [str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    assert cli.main(["bench", "show", *files]) == 0
    out = capsys.readouterr().out
    assert "3.000" in out
    assert "3.300" in out
    assert "1.100" in out


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"format": "mujoco-vecenv bench", "version": 1, "kind": "sweep"}',
        '{"format": "mujoco-vecenv bench", "version": 99, "kind": "sweep"}',
    ],
)
def test_a_file_that_is_no_record_is_refused(tmp_path, text, capsys):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"x\.json"):
        record.read(path)
    assert cli.main(["bench", "show", str(path)]) == 2
    assert "x.json" in capsys.readouterr().err


def test_the_box_names_who_is_busy(monkeypatch):
    used = iter(
        [{"idle (1)": 5.0, "busy (2)": 1.0}, {"idle (1)": 5.0, "busy (2)": 4.0, "new (3)": 9.0}]
    )
    clock = iter([100.0, 104.0])
    monkeypatch.setattr(box, "_other_cpu_times", lambda: next(used))
    monkeypatch.setattr(box.time, "monotonic", lambda: next(clock))
    machine = box.Box()
    machine.sample()
    assert machine.samples[0].busy == {"busy (2)": 0.75}  # now, not over its lifetime
    assert any("busy (2) used up to 75% of a core" in w for w in machine.warnings)
    with pytest.raises(box.BusyMachineError, match=r"busy \(2\) at 75%"):
        machine.refuse_if_busy()


def test_the_box_does_not_count_us():
    machine = box.Box()
    for _ in range(3):
        sum(range(2_000_000))
    machine.sample()
    assert not any(f"({os.getpid()})" in name for name in machine.samples[0].busy)
    machine.samples[0].busy.clear()
    machine.refuse_if_busy()
    assert machine.facts["usable cpus"] >= 1


def test_strict_refuses_before_it_starts(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(box.time, "sleep", lambda seconds: None)

    def refuse(self):
        raise box.BusyMachineError("the machine is busy: make (7) at 99%")

    monkeypatch.setattr(box.Box, "refuse_if_busy", refuse)
    out = tmp_path / "x.json"
    assert cli.main(["bench", "profile", "--strict", "--out", str(out)]) == 2
    assert "make (7) at 99%" in capsys.readouterr().err
    assert not out.exists()


def measured_subject(monkeypatch, tmp_path, *arguments):
    """Return what a command line would measure, and what its record says of it."""
    monkeypatch.setattr(box.time, "sleep", lambda seconds: None)
    subjects = []
    monkeypatch.setattr(kinds, arguments[0], lambda run, subject, **_: subjects.append(subject))
    out = tmp_path / "subject.json"
    assert cli.main(["bench", *arguments, "--out", str(out)]) == 0
    return subjects[0], record.read(out)["settings"]


def test_what_the_command_line_measures(monkeypatch, tmp_path, task_file):
    duck = MicroduckConfig(reward="v2")
    for arguments in ((), ("--task", "Microduck-v0")):
        subject, settings = measured_subject(monkeypatch, tmp_path, "layers", *arguments)
        assert subject == duck
        assert settings["variant"] == "groundcontact"
        assert settings["reward"] == "v2"
    for task in (TASK, task_file):
        subject, settings = measured_subject(monkeypatch, tmp_path, "layers", "--task", task)
        assert subject == settings["task"] == task
        assert settings["steps"] == task_windows.STEPS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["layers", "--task", "Hoper-v5"], "did you mean 'Hopper-v5'"),
        (["layers", "--task", TASK, "--reward", "v1"], "--reward is for Microduck-v0, not for"),
        (["sweep", "--task", TASK, "--variant", "walking"], "--variant"),
        (["randomization", "--task", TASK], "unrecognized arguments: --task"),
        (["train", "--task", TASK], "unrecognized arguments: --task"),
        (["suite", "--tasks", "Hoper-v5"], "invalid choice: 'Hoper-v5'"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, message, capsys):
    try:
        status = cli.main(["bench", *arguments])
    except SystemExit as refused:
        status = refused.code
    assert status == 2
    assert message in capsys.readouterr().err.replace("\n", " ")
