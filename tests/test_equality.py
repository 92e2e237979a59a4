"""The batch environments are the reference environments, and a difference would be noticed."""

import numpy as np
import pytest

from mujoco_vecenv import DRConfig, MicroduckConfig, MicroduckEnv, VecEnv, contract
from mujoco_vecenv.microduck.config import SCENES
from mujoco_vecenv.microduck.robot import scene_path


def actions(steps, n, seed=0):
    return np.random.default_rng(seed).uniform(-1.2, 1.2, (steps, n, 14))


def test_contract_holds_over_at_least_25_episodes():
    report = contract.run_contract(contract.CASES, 1, lambda steps: None)
    assert report.total.first == ""
    assert report.total.equal
    assert report.total.episodes == 2 * len(contract.CASES) >= 25
    # 500 steps, two terminal observations and the first
    assert report.total.identical == report.total.observations == 503 * len(contract.CASES)
    assert report.same_draws == report.seeds == 100
    assert (report.total.max_abs, report.total.max_rel) == (0.0, 0.0)


def test_contract_covers_what_it_must():
    kw = [case.keywords for case in contract.CASES]
    for reward in ("v1", "v2"):
        mine = [k for k in kw if k.get("reward", "v1") == reward]
        assert {k.get("latency", 0) for k in mine} >= {0, 2}
        assert {k.get("init_noise", 0.02) for k in mine} >= {0, 0.02}
        assert any(k.get("action_scale") == 0.5 and k.get("n_pushes") == 5 for k in mine)
    assert len({k.get("variant", "groundcontact") for k in kw}) == 5
    for variant in ("groundcontact", "groundcontact_backlash", "rollers"):
        drs = [k["dr"] for k in kw if "dr" in k and k.get("variant") == variant]
        assert {dr.sensor_noise for dr in drs} == {False, True}
        assert {dr.recompute_constants for dr in drs} == {False, True}
        assert any(dr.latency == (1, 1) for dr in drs)
        assert any(dr.init_noise == (0.3, 0.3) for dr in drs)


@pytest.mark.parametrize("reward", ["v1", "v2"])
def test_eight_environments_equal_eight_references_over_three_autoresets(reward):
    keywords = {"reward": reward, "episode_steps": 80, "latency": 1}
    envs = VecEnv(8, seed=40, with_terms=True, **keywords)
    references = [MicroduckEnv(seed=40 + i, **keywords) for i in range(8)]
    first = np.stack([reference.reset() for reference in references])
    assert envs.reset().tobytes() == first.tobytes()
    ended = 0
    for action in actions(250, 8):
        obs, rewards, done, infos = envs.step(action)
        for i, reference in enumerate(references):
            expected, reward_, done_, info = reference.step(action[i])
            if done_:
                ended += 1
                info["terminal_obs"] = expected
                expected = reference.reset()
                assert infos[i]["terminal_obs"].tobytes() == info["terminal_obs"].tobytes()
            assert obs[i].tobytes() == expected.tobytes()
            assert (rewards[i], done[i]) == (reward_, done_)
            assert list(infos[i]) == list(info)
            for name in set(info) - {"terminal_obs", "terms"}:
                assert contract.same_bits(infos[i][name], info[name])
            assert list(infos[i]["terms"].items()) == list(info["terms"].items())
    assert ended == 3 * 8


def test_number_of_threads_changes_no_bit():
    runs = []
    for threads in (1, 2, 4, 8):
        with VecEnv(8, 3, threads=threads, allow_overcommit=True, episode_steps=60) as envs:
            steps = [envs.step(action) for action in actions(130, 8)]
        runs.append([b"".join(array.tobytes() for array in step[:3]) for step in steps])
    assert runs[0] == runs[1] == runs[2] == runs[3]


def test_processes_equal_references():
    keywords = {"episode_steps": 60, "sensor_noise": True, "variant": "rollers"}
    with (
        VecEnv(3, 9, True, backend="sync", **keywords) as reference,
        VecEnv(3, 9, True, backend="process", **keywords) as candidate,
    ):
        tally = contract.compare(reference, candidate, 130, seed=1)
        assert tally.equal
        assert tally.episodes == 6
        assert reference.reset(seed=4).tobytes() == candidate.reset(seed=4).tobytes()


def test_float32_actions_equal_the_same_numbers_in_float64():
    single = actions(20, 2).astype(np.float32)
    with VecEnv(2) as one, VecEnv(2) as other:
        for action in single:
            ours, theirs = one.step(action), other.step(action.astype(np.float64))
            assert ours[0].tobytes() == theirs[0].tobytes()
            assert ours[1].tobytes() == theirs[1].tobytes()


@pytest.fixture
def pair():
    """A reference and a batch environment to break."""
    keywords = {"episode_steps": 120, "reward": "v1"}
    with (
        VecEnv(2, 0, True, backend="sync", **keywords) as reference,
        VecEnv(2, 0, True, backend="batch", **keywords) as candidate,
    ):
        yield reference, candidate


def test_the_unbroken_pair_is_equal(pair):
    assert contract.compare(*pair, steps=120, seed=0).equal


def test_a_push_moved_by_one_step_is_noticed(pair):
    reference, candidate = pair
    candidate._envs._columns["push_steps"][1, 0] += 1
    tally = contract.compare(reference, candidate, steps=120, seed=0)
    assert not tally.equal
    assert tally.identical < tally.observations
    assert tally.max_abs > 0
    assert "environment 1 at step" in tally.first


@pytest.mark.parametrize("term", range(6))
def test_a_weight_changed_in_its_last_bit_is_noticed(pair, term):
    reference, candidate = pair
    weights = candidate._envs._envs._params["weights"][0]
    weights[term] = np.nextafter(weights[term], np.inf)
    tally = contract.compare(reference, candidate, steps=120, seed=0)
    assert tally.identical == tally.observations
    assert tally.info_mismatches > 0
    assert not tally.equal


def test_swapped_channels_are_noticed(pair):
    reference, candidate = pair

    class Swapped:
        n = candidate.n

        def reset(self):
            return self.swap(candidate.reset())

        def step(self, action):
            obs, *rest = candidate.step(action)
            return self.swap(obs), *rest

        def swap(self, obs):
            obs[:, [42, 43]] = obs[:, [43, 42]]
            return obs

    tally = contract.compare(reference, Swapped(), steps=5, seed=0)
    assert not tally.equal
    assert tally.reward_mismatches == tally.info_mismatches == 0


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (0.0, 0.0, True),
        (0.0, -0.0, False),
        (float("nan"), float("nan"), True),
        (1, 1.0, False),
        (True, 1, False),
        (np.float32(1), np.float64(1), False),
        (np.zeros(2), np.zeros(2, np.float32), False),
        (np.zeros(2), np.array([0.0, -0.0]), False),
        ("v1", "v1", True),
        (1.0, np.nextafter(1.0, 2.0).item(), False),
    ],
)
def test_same_bits(a, b, same):
    assert contract.same_bits(a, b) is same


def assets_with(folder, **changes):
    """Copy the packaged models to a folder, each text replaced by another."""
    for variant, name in SCENES.items():
        text = scene_path(MicroduckConfig(variant=variant)).read_text()
        for old, new in changes.values():
            assert old in text or variant != "groundcontact"
            text = text.replace(old, new)
        (folder / name).write_text(text)
    return folder


GENERAL = 'ctrlrange="-10 10" gaintype="fixed" biastype="affine"'
SERVO_LINE = 'kp="0.55" kv="0" ctrlrange="-10 10" forcerange="-0.96 0.96"'


@pytest.mark.parametrize(
    "changes",
    [
        {"kv": (SERVO_LINE, 'kp="0.55" kv="0.01" ctrlrange="-10 10" forcerange="-0.96 0.96"')},
        {"tight": (SERVO_LINE, 'kp="0.55" ctrlrange="-10 10" forcerange="-0.03 0.04"')},
        {"free": (SERVO_LINE, 'kp="0.55" ctrlrange="-10 10"')},
        {"gear": (SERVO_LINE, 'kp="0.55" ctrlrange="-10 10" gear="1.3" forcerange="-0.5 0.5"')},
        {
            "tag": ("<position ", "<general "),
            "bias": (
                SERVO_LINE,
                f'{GENERAL} gainprm="0.5" biasprm="0.02 -0.45 -0.003" forcerange="-0.2 0.3"',
            ),
        },
        {"imu": ('name="imu" pos', 'name="imu" quat="0.9 0.3 -0.1 0.2" pos')},
        {"imu": ('name="imu" pos', 'name="imu" quat="1 1e-6 0 0" pos')},
        {"silent": ('noise="0.001"', ""), "too": ('noise="0.005"', "")},
        {"integrator": ('timestep="0.002"', 'timestep="0.002" integrator="implicitfast"')},
    ],
    ids=lambda changes: "-".join(changes),
)
@pytest.mark.parametrize("actuator", [False, True])
def test_models_of_ones_own_are_equal_too(tmp_path, changes, actuator):
    keywords = {
        "assets_dir": assets_with(tmp_path, **changes),
        "episode_steps": 60,
        "sensor_noise": True,
        "latency": 3,
        "dr": DRConfig(actuator=actuator, latency=None),
        "action_scale": 5.0,  # forces beyond the servos' limits
    }
    with (
        VecEnv(2, 1, True, backend="sync", **keywords) as reference,
        VecEnv(2, 1, True, **keywords) as candidate,
    ):
        tally = contract.compare(reference, candidate, 140, seed=0)
    assert tally.first == ""
    assert tally.equal


def test_what_an_episode_leaves_behind_for_the_next_is_noticed(pair):
    reference, candidate = pair
    real = candidate._envs._start

    def forgetful(ids, episodes):
        running = candidate._envs._columns["running"]
        left = running["next_push"].copy()
        real(ids, episodes)
        running["next_push"] = left

    candidate._envs._start = forgetful
    assert contract.compare(reference, candidate, 120, seed=0).equal
    assert not contract.compare(reference, candidate, 120, seed=1).equal
