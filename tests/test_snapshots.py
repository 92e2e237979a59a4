"""Episodes and snapshots as values: replayed, resumed and moved between backends to the bit."""

import contextlib
import io
import re

import numpy as np
import pytest

from mujoco_vecenv import (
    DRConfig,
    MicroduckEnv,
    Recording,
    VecEnv,
    cli,
    contract,
    load_recording,
    save_recording,
)
from mujoco_vecenv.engine.generators import rng_words, set_rng
from mujoco_vecenv.microduck.randomization import SERVO_HI, Factors
from mujoco_vecenv.replay import replay
from mujoco_vecenv.vector.vec_env import BACKENDS

FULL = {"dr": DRConfig(recompute_constants=True), "episode_steps": 90, "reward": "v2"}


def actions(steps, n, seed=0):
    return np.random.default_rng(seed).uniform(-1.2, 1.2, (steps, n, 14))


def run(envs, chosen):
    return [b"".join(array.tobytes() for array in envs.step(a)[:3]) for a in chosen]


def through_a_file(snapshot):
    file = io.BytesIO()
    np.savez(file, **snapshot)
    file.seek(0)
    return np.load(file, allow_pickle=False)


@pytest.mark.parametrize("source", ["batch", "process"])
@pytest.mark.parametrize("target", ["batch", "process"])
def test_a_continued_run_is_the_uninterrupted_one_for_1000_steps(source, target):
    keywords = {**FULL, "episode_steps": 250}
    chosen = actions(1130, 2)
    with VecEnv(2, 7, backend=source, **keywords) as envs:
        run(envs, chosen[:130])  # into the middle of an episode
        snapshot = envs.get_state()
        last = envs.reset()
        expected = run(envs, chosen[130:])
        end = envs.get_state()
    with VecEnv(2, 99, backend=target, **keywords) as envs:
        run(envs, chosen[:30])
        assert envs.set_state(through_a_file(snapshot)).tobytes() == last.tobytes()
        assert envs.reset().tobytes() == last.tobytes()
        assert run(envs, chosen[130:]) == expected
        again = envs.get_state()
    assert list(again) == list(end)
    for name, array in end.items():
        assert again[name].tobytes() == array.tobytes(), name


@pytest.mark.parametrize("source", BACKENDS)
@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"latency": 3, "n_pushes": 0},
        {"sensor_noise": True},
        {"dr": DRConfig(sensor_noise=False), "variant": "rollers"},
        {"init_noise": 0, "variant": "walk_backlash"},
    ],
)
@pytest.mark.parametrize("steps", [0, 1, 44, 45])
def test_snapshots_are_the_same_from_every_backend(source, keywords, steps):
    keywords = {**keywords, "episode_steps": 45}
    chosen = actions(steps + 60, 2)
    with VecEnv(2, backend="sync", **keywords) as envs:
        run(envs, chosen[:steps])
        expected = envs.get_state()
        rest = run(envs, chosen[steps:])
    with VecEnv(2, backend=source, **keywords) as envs:
        run(envs, chosen[:steps])
        snapshot = envs.get_state()
        for name, array in expected.items():
            assert snapshot[name].tobytes() == array.tobytes(), name
        run(envs, chosen[:7])
        envs.set_state(snapshot)
        assert run(envs, chosen[steps:]) == rest


def test_a_snapshot_is_small_plain_and_the_callers():
    with VecEnv(8, **FULL) as envs:
        run(envs, actions(20, 8))
        snapshot = envs.get_state()
        copies = {name: array.copy() for name, array in snapshot.items()}
        run(envs, actions(20, 8))
    assert all(snapshot[name].tobytes() == copies[name].tobytes() for name in copies)
    assert all(type(array) is np.ndarray and array.dtype != object for array in snapshot.values())
    assert sum(array.nbytes for array in snapshot.values()) / 8 < 4096
    assert list(through_a_file(snapshot)) == list(snapshot)  # read with allow_pickle=False


def broken(snapshot, **changes):
    return {**snapshot, **{k: v(snapshot[k]) for k, v in changes.items()}}


@pytest.mark.parametrize("backend", ["batch", "sync"])
def test_a_snapshot_that_does_not_fit_is_refused(backend):
    with VecEnv(2, backend=backend, **FULL) as envs:
        run(envs, actions(5, 2))
        good = envs.get_state()
        before = envs.reset().tobytes()
        bad = {
            "n is 3 in it and 2 here": VecEnv(3, **FULL).get_state(),
            "variant is 'walk'": VecEnv(2, variant="walk", **FULL).get_state(),
            "reward is 'v1'": VecEnv(2, **{**FULL, "reward": "v1"}).get_state(),
            "dr is None": VecEnv(2, **{**FULL, "dr": None}).get_state(),
            "mujoco is '3.9.9'": broken(
                good,
                header=lambda h: np.array(
                    str(h).replace('"mujoco": "4', '"mujoco": "3.9.9" ,"x":"')
                ),
            ),
            "model is 'another' in it": broken(
                good,
                header=lambda h: np.array(re.sub('"model": "[^"]*', '"model": "another', str(h))),
            ),
            "version is 3": broken(
                good, header=lambda h: np.array(str(h).replace('"version": 2', '"version": 3'))
            ),
            "header is damaged": broken(good, header=lambda h: np.array("{")),
            "has no 'header'": {},
            "has no 'physics'": {k: v for k, v in good.items() if k != "physics"},
            "'physics' is float64": broken(good, physics=lambda a: a[:, 1:]),
            "'t' is float64": broken(good, t=lambda a: a.astype(float)),
            "'t' is not within": broken(good, t=lambda a: a + 90),
            "'latency' is not within": broken(good, latency=lambda a: a - 5),
            "'physics' is not finite": broken(good, physics=lambda a: a * np.nan),
            r"environment 0.push_steps must ascend": broken(good, push_steps=lambda a: a[:, ::-1]),
            "'rng' is no state": broken(good, rng=lambda a: a | np.uint64(1 << 40)),
            "'next_push' is beyond": broken(
                good, pushes=lambda a: a * 0, next_push=lambda a: a + 1
            ),
            "'previous' and 'delayed'": broken(good, previous=lambda a: a + 3),
            "last of 'factors'": broken(good, factors=lambda a: a + 0.5),
            r"environment 0.angles must be finite": broken(good, angles=lambda a: a * np.inf),
        }
        for message, snapshot in bad.items():
            with pytest.raises(ValueError, match=message):
                envs.set_state(snapshot)
            assert envs.reset().tobytes() == before
        with pytest.raises(TypeError, match="a snapshot is a mapping"):
            envs.set_state([1, 2])
        after = envs.get_state()
        assert all(after[name].tobytes() == good[name].tobytes() for name in good)


def test_generator_words():
    rng, other = np.random.default_rng(3), np.random.default_rng(4)
    rng.integers(0, 3, 5)  # leaves half a word behind
    set_rng(other, rng_words(rng))
    assert other.bit_generator.state == rng.bit_generator.state
    assert other.random() == rng.random()


@pytest.mark.parametrize("source", BACKENDS)
@pytest.mark.parametrize("target", BACKENDS)
def test_a_recorded_episode_runs_again_anywhere(source, target):
    with VecEnv(2, 5, backend=source, with_terms=True, **FULL) as envs:
        run(envs, actions(100, 2))
        episodes = envs.record()  # of the second episode, ten steps in
        envs.reset(episodes=episodes)
        expected = [envs.step(a) for a in actions(90, 2, 1)]
    with VecEnv(3, 77, backend=target, with_terms=True, **FULL) as envs:
        run(envs, actions(40, 3))
        envs.reset(episodes={2: episodes[0], 0: episodes[1]})
        chosen = actions(90, 2, 1)
        for step in range(90):
            triple = np.stack([chosen[step, 1], np.zeros(14), chosen[step, 0]])
            obs, rewards, done, infos = envs.step(triple)
            for mine, theirs in ((2, 0), (0, 1)):
                if step < 89:
                    assert obs[mine].tobytes() == expected[step][0][theirs].tobytes()
                else:
                    last = infos[mine]["terminal_obs"]
                    assert last.tobytes() == expected[step][3][theirs]["terminal_obs"].tobytes()
                assert rewards[mine] == expected[step][1][theirs]
                assert infos[mine]["terms"] == expected[step][3][theirs]["terms"]
            assert done[2] == (step == 89)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_episode_cut_short_leaves_the_generator_where_the_reference_has_it(backend):
    keywords = {"sensor_noise": True, "episode_steps": 60}
    reference = MicroduckEnv(seed=3, **keywords)
    reference.reset(seed=3)
    with VecEnv(1, 3, backend=backend, **keywords) as envs:
        episode = envs.record()[0]
        for action in actions(20, 1):
            envs.step(action)
            reference.step(action[0])
        # cut short by an injected episode: its end draws from where the 21st observation left off
        obs = envs.reset(episodes=[episode])
        assert obs[0].tobytes() == reference.reset(episode=episode).tobytes()
        for action in actions(60, 1, 1):
            obs, *_ = envs.step(action)
            reference.step(action[0])
        assert obs[0].tobytes() == reference.reset().tobytes()
        # cut short by a seed
        envs.step(action)
        first = envs.reset(seed=8)
        assert first[0].tobytes() == reference.reset(seed=8).tobytes()
        assert envs.step(action)[0][0].tobytes() == reference.step(action[0])[0].tobytes()


@pytest.mark.parametrize("backend", BACKENDS)
def test_recorded_and_injected_episodes_are_the_callers(backend):
    with VecEnv(2, backend=backend, init_noise=0, sensor_noise=True) as envs:
        envs.reset(episodes=(given := envs.record()))
        state = envs.get_state()
        for episode in (*given, *envs.record()):
            for name in ("angles", "velocities", "push_velocity", "noise"):
                getattr(episode, name)[:] = 9.0
            episode.push_steps[:] = 3
        after = envs.get_state()
        assert all(after[name].tobytes() == state[name].tobytes() for name in state)
        with VecEnv(2, init_noise=0, sensor_noise=True) as other:
            other.set_state(state)
            assert run(envs, actions(300, 2)) == run(other, actions(300, 2))


def test_an_episode_that_holds_more_than_the_configuration_draws_runs_too():
    with VecEnv(2, backend="sync", episode_steps=60) as one, VecEnv(2, episode_steps=60) as other:
        episodes = one.record()
        episodes[0].latency = 5
        episodes[1].push_steps = np.arange(0, 50, 5)
        episodes[1].push_velocity = np.full((10, 2), 0.1)
        episodes[1].sensor_noise = True
        episodes[1].noise = np.random.default_rng(0).normal(0, 0.01, (61, 7))
        one.step(np.ones((2, 14)))
        other.step(np.ones((2, 14)))
        assert one.reset(episodes=episodes).tobytes() == other.reset(episodes=episodes).tobytes()
        run(one, actions(10, 2))
        run(other, actions(10, 2))
        ours, theirs = one.get_state(), other.get_state()
        assert all(ours[name].tobytes() == theirs[name].tobytes() for name in ours)
        assert run(one, actions(80, 2)) == run(other, actions(80, 2))
        other.set_state(ours)
        one.set_state(theirs)
        assert run(one, actions(80, 2)) == run(other, actions(80, 2))


BAD_EPISODES = [
    ("latency", -1, ValueError, r"episodes\[1\].latency must be 0 or more"),
    ("latency", 90, ValueError, "latency=90 must be below episode_steps=90"),
    ("latency", 1.0, TypeError, "latency must be an integer"),
    ("sensor_noise", 1, TypeError, "sensor_noise must be True or False"),
    ("angles", np.zeros(13), ValueError, r"angles must be float64 of shape \(14,\).*\(13,\)"),
    ("angles", np.full(14, np.nan), ValueError, r"angles must be finite, got nan at \(0,\)"),
    ("velocities", np.zeros(14, np.float32), ValueError, "velocities must be float64"),
    ("push_steps", np.array([5, 5, 7]), ValueError, "push_steps must ascend, got 5 after 5"),
    ("push_steps", np.array([5, 6, 90]), ValueError, "push_steps must be within 0 … 89, got 90"),
    ("push_steps", np.array([5.0, 6, 7]), TypeError, "push_steps must be a"),
    ("push_steps", np.array([5, 6]), ValueError, r"push_velocity must be .*\(2, 2\)"),
    ("push_velocity", np.full((3, 2), np.inf), ValueError, "push_velocity must be finite"),
    ("noise", np.zeros((90, 7)), ValueError, r"noise must be float64 of shape \(91, 7\)"),
    ("factors", "heavy", TypeError, "factors must be Factors or None"),
    ("factors", Factors(None, 0.0, None), ValueError, "mass_scale must be positive"),
    ("factors", Factors(None, "x", None), TypeError, "mass_scale must be a number"),
    ("factors", Factors(None, 1.0, None, "yes"), TypeError, "recompute_constants must be True"),
    ("push_steps", [[1], [2, 3]], TypeError, "push_steps must be a"),
    ("angles", [[1], [2, 3]], ValueError, "angles must be float64"),
    ("factors", Factors(-SERVO_HI, 1.0, None), ValueError, "damping must be 0 or more"),
    ("factors", Factors(SERVO_HI[:4], 1.0, None), ValueError, "servo must be float64 of shape"),
]


@pytest.mark.parametrize(("field", "value", "error", "message"), BAD_EPISODES)
@pytest.mark.parametrize("backend", ["batch", "sync"])
def test_bad_episodes_are_refused_and_nothing_changes(backend, field, value, error, message):
    with VecEnv(2, backend=backend, **FULL) as envs:
        run(envs, actions(3, 2))
        before = envs.get_state()
        episodes = envs.record()
        setattr(episodes[1], field, value)
        with pytest.raises(error, match=message):
            envs.reset(seed=4, episodes=episodes)
        after = envs.get_state()
        assert all(after[name].tobytes() == before[name].tobytes() for name in before)


def test_episodes_must_go_to_environments_there_are():
    with VecEnv(2) as envs:
        episode = envs.record()[0]
        for episodes, message in (
            ([episode], "1 given for 2 environments"),
            ({2: episode}, "environment 2 is not within 0 … 1"),
            ({-1: episode}, "environment -1 is not within"),
        ):
            with pytest.raises(ValueError, match=message):
                envs.reset(episodes=episodes)
        with pytest.raises(TypeError, match="must be an Episode, got None"):
            envs.reset(episodes=[episode, None])


def test_a_recording_goes_through_a_file(tmp_path):
    chosen = actions(50, 1)[:, 0]
    with VecEnv(1, 4, dr=True, variant="rollers") as envs:
        episode = envs.record()[0]
        observed = [envs.step(a[None])[0][0] for a in chosen]
        config = envs.config
    file = tmp_path / "fall.npz"
    save_recording(file, Recording(episode, config, chosen))
    loaded = load_recording(file)
    assert contract.same_episodes(loaded.episode, episode)
    assert loaded.config == config
    assert loaded.actions.tobytes() == chosen.tobytes()
    trajectory = replay(loaded)
    assert trajectory.observations[1:].tobytes() == np.stack(observed).tobytes()
    assert len(trajectory.rewards) == 50


def test_replay_shows_an_episode(tmp_path, capsys):
    with VecEnv(1, 4, reward="v2") as envs:
        recording = Recording(envs.record()[0], envs.config, np.zeros((0, 14)))
    file = tmp_path / "hold.npz"
    save_recording(file, recording)
    assert cli.main(["replay", str(file)]) == 0
    out = capsys.readouterr().out
    assert "no actions recorded: holding STAND" in " ".join(out.split())
    assert "over 250 steps" in out
    assert (tmp_path / "hold.png").stat().st_size > 10_000


def test_a_damaged_recording_is_refused(tmp_path, capsys):
    with VecEnv(1) as envs:
        recording = Recording(envs.record()[0], envs.config, np.zeros((0, 14)))
    file = tmp_path / "episode.npz"
    save_recording(file, recording)
    whole = file.read_bytes()
    arrays = dict(np.load(file))
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="no mujoco-vecenv episode, or it is damaged"):
        load_recording(file)
    np.savez(file, **{**arrays, "angles": np.zeros(3)})
    with pytest.raises(ValueError, match=r"damaged: episode.angles must be float64"):
        load_recording(file)
    rng = np.random.default_rng(0)
    for _ in range(200):
        flipped = bytearray(whole)
        flipped[rng.integers(len(whole))] ^= 1 << rng.integers(8)
        file.write_bytes(flipped)
        with contextlib.suppress(ValueError):  # many a byte says nothing
            load_recording(file)
    np.savez(file, **{**arrays, "angles": np.array([object()])})
    with pytest.raises(ValueError, match="damaged"):
        load_recording(file)
    assert cli.main(["replay", str(file)]) == 2
    assert "damaged" in capsys.readouterr().err
    with pytest.raises(ValueError, match="actions: 251 are more than episode_steps=250"):
        save_recording(file, Recording(recording.episode, recording.config, np.zeros((251, 14))))
