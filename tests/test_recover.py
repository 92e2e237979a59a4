"""Search and imitation: what recovers from strong pushes."""

import json
from pathlib import Path

import numpy as np
import pytest

from mujoco_vecenv import MicroduckConfig, VecEnv
from mujoco_vecenv.archive import digest
from mujoco_vecenv.cli import main
from mujoco_vecenv.train import recover, reflexes, windows
from mujoco_vecenv.train.config import RecoverConfig
from mujoco_vecenv.train.policy import Policy
from mujoco_vecenv.train.run import torch_threads

STANDING = Path(__file__).parents[1] / "results/training/minute/policy.npz"
STAGES = ("forward", "backward", "imitation")
SHORT = RecoverConfig(rollouts=16, iterations=2, rounds=2)


def learned(seed=0, threads=1, tell=lambda line: None):
    with torch_threads(1):
        return recover.recover(Policy.load(STANDING), SHORT, seed, threads, tell)


def test_a_reflex_is_linear_between_its_knots_and_fades():
    knots = np.arange(reflexes.KNOTS, dtype=float)[None, :, None] + np.zeros((1, 1, 14))
    values = [np.broadcast_to(reflexes.at(knots, step), (1, 14))[0, 0] for step in range(50)]
    assert values[0] == 0, "nobody knows of the push yet"
    assert [values[step] for step in (1, 6, 11, 31)] == [0, 1, 2, 6]
    assert values[36] == 7 * 5 / 8, "it fades over its last 8 steps"
    assert values[41:] == [0] * 9


def test_weak_pushes_and_those_from_the_side_need_no_reflex():
    velocity = np.array([[0.27, 0.1], [-0.2, 0.0], [0.0, 0.45], [0.38, 0.0], [-0.38, 0.2]])
    assert reflexes.features(velocity).tolist() == [
        [0, 0, 0, 0],
        [0, 0, 0, 0],
        [0, 0, 0, 0],
        [1, 0, 0, -0.4],
        [1, 0, 1, -0.4],
    ]


def test_pushes_follow_the_headings():
    rng = np.random.default_rng(0)
    robots = windows.Robots(MicroduckConfig(reward="v2"), 4, 0, rng, 1)
    state = robots.envs.get_state()
    rows = {name: array for name, array in state.items() if name != "header"}
    headings = np.array([0.0, 0.5, -2.0, 3.0])
    rows["physics"][:, 4:8] = 0
    rows["physics"][:, 4], rows["physics"][:, 7] = np.cos(headings / 2), np.sin(headings / 2)
    robots._rows()
    robots._push(rows, np.tile([0.3, 0.1], (4, 1)))
    pushed = robots.envs.get_state()
    cos, sin = np.cos(headings), np.sin(headings)
    expected = np.stack([0.3 * cos - 0.1 * sin, 0.3 * sin + 0.1 * cos], axis=1)
    assert np.abs(pushed["push_velocity"][:, 0] - expected).max() < 1e-15
    assert pushed["push_steps"].tolist() == [[0]] * 4
    before = pushed["physics"][:, 22:24]  # time, 21 positions, then velocities
    robots.envs.step(np.zeros((4, 14)))
    assert robots.envs.get_state()["next_push"].tolist() == [1] * 4
    assert (before == state["physics"][:, 22:24]).all()
    robots.close()


def test_new_robots_stand_wherever_the_old_ones_lie():
    act = Policy.load(STANDING).actor()
    rng = np.random.default_rng(0)
    robots = windows.Robots(MicroduckConfig(reward="v2"), 16, 5, rng, 1)
    before = robots.standing(act, 25, 30)
    velocity = np.tile([1.0, 0.0], (16, 1))
    window = robots.run(robots.pushed(before, None, velocity), lambda obs, step: act(obs))
    assert not window.upright.any()
    after = robots.standing(act, 25, 30)
    assert digest(before) == digest(after)
    robots.close()


def test_the_same_policy_on_any_number_of_threads():
    lines = []
    one, other = learned(tell=lines.append), learned(threads=2)
    assert digest(one.arrays) == digest(other.arrays)
    assert digest(one.arrays) != digest(learned(seed=1).arrays)
    standing = Policy.load(STANDING)
    changed = {name for name, array in one.arrays.items() if (array != standing.arrays[name]).any()}
    assert changed == {f"actor.{k}.{part}" for k in "024" for part in ("weight", "bias")}
    assert one.header["steps"] == standing.header["steps"] + (2 * 4 + 1 + 2) * 80 * 16
    stages = {stage: [x["iteration"] for x in lines if x["stage"] == stage] for stage in STAGES}
    assert stages == {stage: [1, 2] for stage in STAGES}


def test_what_was_learned_takes_a_push_that_felled_it():
    upright = {}
    for name in ("minute", "steady-0"):
        act = Policy.load(STANDING.parents[1] / name).actor()
        with VecEnv(16, seed=900_000, reward="v2", episode_steps=151, n_pushes=1) as envs:
            episodes = envs.record()
            for episode in episodes:
                episode.push_steps[:], episode.push_velocity[:] = 40, [0.4, 0.0]
            obs = envs.reset(episodes=episodes)
            for _ in range(150):
                obs, _, _, _ = envs.step(act(obs))
        upright[name] = (-obs[:, 47] > 0.9).sum()
    assert upright["minute"] <= 2
    assert upright["steady-0"] >= 14


def test_the_command(tmp_path, capsys):
    short = ["--rollouts", "16", "--iterations", "1", "--rounds", "1"]
    command = ["recover", str(STANDING), *short, "--runs", str(tmp_path), "--tag", "steady"]
    assert main(command) == 0
    folder = tmp_path / "steady"
    lines = [json.loads(line) for line in (folder / "recover.jsonl").read_text().splitlines()]
    assert sorted(line["stage"] for line in lines) == sorted(STAGES)
    policy = Policy.load(folder)
    standing = Policy.load(STANDING).header["steps"]
    assert policy.header["steps"] == standing + (2 * 3 + 1 + 1) * 80 * 16
    assert policy.header["recover"] == {"rollouts": 16, "iterations": 1, "rounds": 1, "seed": 0}
    assert main(["eval", str(folder), "--episodes", "1", "--seeds", "1"]) == 0
    capsys.readouterr()
    assert main(command) == 2
    assert "steady holds a policy already: choose another tag" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--rollouts", "4", "rollouts must be 16 or more, got 4"),
        ("--rounds", "0", "rounds must be 1 or more, got 0"),
        ("--threads", "1000", "threads=1000 is more than the "),
        ("--tag", "", "--tag must not be empty"),
        ("--seed", "-1", "seed must be 0 or more, got -1"),
    ],
)
def test_values_that_are_refused(tmp_path, capsys, option, value, message):
    command = ["recover", str(STANDING), "--runs", str(tmp_path), "--tag", "x", option, value]
    assert main(command) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_a_policy_that_falls_is_refused():
    standing = Policy.load(STANDING)
    falling = {n: 0 * a if n.startswith("actor.") else a for n, a in standing.arrays.items()}
    with torch_threads(1), pytest.raises(ValueError, match="of the robots fall by themselves"):
        recover.recover(Policy(falling, standing.header), SHORT, 0, 1, lambda line: None)


def test_only_the_microduck_is_pushed():
    standing = Policy.load(STANDING)
    header = {k: v for k, v in standing.header.items() if k != "config"}
    other = Policy(standing.arrays, header | {"task": "Hopper-v5", "options": {}})
    with pytest.raises(ValueError, match=r"only Microduck-v0 is pushed, .* for Hopper-v5"):
        recover.recover(other, SHORT, 0, 1, lambda line: None)
