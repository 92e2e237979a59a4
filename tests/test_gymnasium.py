"""Every task is a vector environment of Gymnasium's, equal to its SyncVectorEnv to the last bit."""

import re
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import vector as wrappers

import mujoco_vecenv.vector.gymnasium_env as ours
from mujoco_vecenv.engine import budget
from mujoco_vecenv.microduck.randomization import DRConfig
from mujoco_vecenv.tasks import MICRODUCK, TASKS

SUITE = [name for name in TASKS if name != MICRODUCK]
MODES = list(AutoresetMode)
NEXT_STEP, SAME_STEP, DISABLED = (
    AutoresetMode.NEXT_STEP,
    AutoresetMode.SAME_STEP,
    AutoresetMode.DISABLED,
)

CARTPOLE = '''
from pathlib import Path

import numpy as np

from mujoco_vecenv.engine.task import ACTION, Task

MODEL = """<mujoco><option timestep="0.01"/><worldbody><body><joint name="slide" type="slide"
axis="1 0 0"/><geom size="0.1" mass="1"/><body><joint name="hinge" axis="0 1 0"/><geom
type="capsule" fromto="0 0 0 0 0 0.6" size="0.05" mass="0.1" contype="0"/></body></body></worldbody>
<actuator><motor joint="slide" gear="30" ctrlrange="-1 1"/></actuator></mujoco>"""


def reset(rng, qpos, qvel):
    qpos[:] = rng.uniform(-0.05, 0.05, 2)
    qvel[:] = rng.uniform(-0.05, 0.05, 2)


def leave(rng, elapsed):
    rng.uniform(size=elapsed)


def reward(ctrl, info):
    info.force = 30 * ctrl[0]
    return 1.0 - 0.1 * ctrl[0] * ctrl[0]


def terminated(qpos):
    return abs(qpos[1]) > 0.2


def describe(qpos, elapsed, info):
    info.upright = abs(qpos[1]) < 0.1
    info.place[:] = qpos
    info.steps = elapsed


def observe(qpos, qvel, obs):
    obs[:2] = qpos
    obs[2:] = qvel


def make(episode_steps=20):
    path = Path(__file__).with_suffix(".xml")
    path.write_text(MODEL)
    return Task(
        name="CartPole", model=path, substeps=2, observations=4, episode_steps=episode_steps,
        observation_dtype=np.float32,
        info={"upright": bool, "place": (float, 2), "steps": int, "force": ACTION},
        reset_info=("upright", "place"),
        reset=reset, leave=leave, reward=reward, terminated=terminated, describe=describe,
        observe=observe,
    )
'''


def make(name, n=3, mode=NEXT_STEP, **options):
    """Return our vector environment of a task."""
    return gymnasium.make_vec(f"mujoco_vecenv/{name}", num_envs=n, autoreset_mode=mode, **options)


def make_sync(name, n=3, mode=NEXT_STEP, **options):
    """Return Gymnasium's of single environments, by their full name."""
    return gymnasium.make_vec(
        name,
        num_envs=n,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": mode},
        **options,
    )


def same(a, b, where="result"):
    """Assert that two results have the same types, shapes and bits."""
    if isinstance(a, tuple):
        assert len(a) == len(b), where
        for k, (x, y) in enumerate(zip(a, b, strict=True)):
            same(x, y, f"{where}[{k}]")
    elif isinstance(a, dict):
        assert set(a) == set(b), where
        for key in a:
            same(a[key], b[key], f"{where}[{key!r}]")
    elif a is None or b is None:
        assert a is b, where
    else:
        assert type(a) is type(b) is np.ndarray, where
        assert (a.dtype, a.shape) == (b.dtype, b.shape), where
        if a.dtype == object:
            same(tuple(a), tuple(b), where)
        else:
            assert a.tobytes() == b.tobytes(), (where, a, b)


def drive(a, b, steps, seed=0, beyond=1.0):
    """Step two vector environments alike, assert that they stay the same; count the ends.

    Actions are drawn within `beyond` times their limits, and are float64 at every third step.
    """
    rng = np.random.default_rng(seed)
    space, ends = a.unwrapped.action_space, 0
    for t in range(steps):
        actions = rng.uniform(beyond * space.low, beyond * space.high)
        actions = actions.astype(np.float64 if t % 3 == 2 else np.float32)
        step = a.step(actions)
        same(step, b.step(actions), f"step {t}")
        over = step[2] | step[3]
        ends += over.sum()
        if a.metadata["autoreset_mode"] is DISABLED and over.any():
            same(reset_by(a, over), reset_by(b, over), f"reset at {t}")
    return ends


def reset_by(envs, mask, seed=None):
    """Reset some environments. Gymnasium takes the mask out of the options."""
    return envs.reset(seed=seed, options={"reset_mask": mask})


@pytest.fixture
def cartpole(tmp_path):
    """Register a task of a file, held against plain Python; return its name.

    Gymnasium has an environment of that name, with a time limit that is not this one's.
    """
    path = tmp_path / "cartpole.py"
    path.write_text(CARTPOLE)
    ours.register("CartPole-v1", str(path))
    yield "CartPole-v1"
    del gymnasium.registry["mujoco_vecenv/CartPole-v1"]


def seeds_and_resets(a, b, steps):
    """Go through every way to reset."""
    same(a.reset(seed=3), b.reset(seed=3))
    ends = drive(a, b, steps)
    same(a.reset(seed=[5, None, 6]), b.reset(seed=[5, None, 6]))
    assert a.np_random_seed == b.np_random_seed == (5, 4, 6)
    ends += drive(a, b, 10, seed=1)
    same(a.reset(), b.reset())  # goes on with the same stream
    drive(a, b, 2)
    for seed in (None, 8, [9, None, 10]):
        mask = np.array([True, False, True])
        same(reset_by(a, mask, seed), reset_by(b, mask, seed))
        ends += drive(a, b, 10, seed=2)
    assert a.np_random_seed == b.np_random_seed == (9, 4, 10)
    for one, two in zip(a.np_random, b.np_random, strict=True):
        assert one.bit_generator.state == two.bit_generator.state
    return ends


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SUITE)
def test_equal_to_sync(name, mode):
    with make(name, mode=mode, max_episode_steps=7) as a:
        b = make_sync(name, mode=mode, max_episode_steps=7)
        assert seeds_and_resets(a, b, 20) > 12


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["HalfCheetah-v5", "Hopper-v5", "InvertedPendulum-v5", "Ant-v5"])
def test_equal_to_sync_over_many_steps(name, mode):
    limit = 50 if name == "Ant-v5" else None
    with make(name, mode=mode, max_episode_steps=limit) as a:
        b = make_sync(name, mode=mode, max_episode_steps=limit)
        same(a.reset(seed=0), b.reset(seed=0))
        steps = 1010 if name == "HalfCheetah-v5" else 150
        assert drive(a, b, steps, beyond=1.5) >= 3


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "options",
    [
        {"reward": "v2", "latency": 2},
        {"dr": True},
        {"dr": DRConfig(recompute_constants=True), "sensor_noise": True},
    ],
    ids=["v2", "dr", "constants"],
)
def test_the_microduck_is_its_reference(mode, options):
    name, options = f"mujoco_vecenv/{MICRODUCK}", {"episode_steps": 60, **options}
    with make(MICRODUCK, mode=mode, **options) as a:
        b = make_sync(name, mode=mode, **options)
        same(a.reset(seed=3), b.reset(seed=3))
        assert drive(a, b, 70, beyond=1.2) == 3
        same(a.reset(), b.reset())  # in mid-episode, when sensor noise has been drawn
        drive(a, b, 5)
        mask = np.array([True, False, True])
        same(reset_by(a, mask), reset_by(b, mask))
        drive(a, b, 5)


def test_the_microducks_reference_is_an_environment():
    check_env(gymnasium.make(f"mujoco_vecenv/{MICRODUCK}").unwrapped, skip_render_check=True)


@pytest.mark.parametrize("mode", MODES)
def test_equal_to_sync_over_plain_python(cartpole, mode):
    with make(cartpole, mode=mode) as a:
        b = make_sync(f"mujoco_vecenv/{cartpole}", mode=mode)
        assert isinstance(b, SyncVectorEnv)
        assert isinstance(b.envs[0].unwrapped, ours.SingleEnv)
        assert a.single_observation_space.dtype == np.float32
        assert seeds_and_resets(a, b, 100) > 20


def test_actions_that_are_not_floats():
    a, b = make("HalfCheetah-v5"), make_sync("HalfCheetah-v5")
    same(a.reset(seed=0), b.reset(seed=0))
    same(a.step([[1] * 6] * 3), b.step(np.ones((3, 6), int)))


@pytest.mark.parametrize("mode", MODES)
def test_threads_do_not_matter(mode):
    options = {"n": 5, "mode": mode, "max_episode_steps": 7, "allow_overcommit": True}
    a, b = make("Hopper-v5", threads=1, **options), make("Hopper-v5", threads=2, **options)
    assert (a.threads, b.threads) == (1, 2)
    same(a.reset(seed=1), b.reset(seed=1))
    assert drive(a, b, 40) > 20


@pytest.mark.parametrize("name", SUITE)
def test_it_is_a_vector_env(name):
    a, b = make(name), make_sync(name)
    assert isinstance(a, VectorEnv)
    assert a.num_envs == b.num_envs == len(a) == 3
    for space in ("observation_space", "action_space"):
        for key in (space, f"single_{space}"):
            assert getattr(a, key) == getattr(b, key)
    for key in ("autoreset_mode", "render_fps"):
        assert a.metadata[key] == b.metadata[key]
    for key in ("max_episode_steps", "reward_threshold"):
        assert getattr(a.spec, key) == getattr(b.spec, key)
    assert a.spec.id == f"mujoco_vecenv/{name}"
    assert (a.render_mode, a.closed) == (None, False)
    assert repr(a) == f"TaskVectorEnv(mujoco_vecenv/{name}, num_envs=3)"


def test_its_spec_makes_it_again():
    a = make("Swimmer-v5", mode="SameStep", max_episode_steps=9, ctrl_cost_weight=0.5)
    b = gymnasium.make_vec(gymnasium.envs.registration.EnvSpec.from_json(a.spec.to_json()))
    assert b.metadata["autoreset_mode"] is SAME_STEP
    same(a.reset(seed=0), b.reset(seed=0))
    assert drive(a, b, 20) == 6


def test_without_a_seed_the_system_gives_one():
    a = make("Reacher-v5")
    seeds = a.np_random_seed
    assert len(set(seeds)) == 3
    first = a.reset()
    assert a.np_random_seed == seeds
    same(first, make("Reacher-v5").reset(seed=list(seeds)))


def test_episode_limits(cartpole):
    assert make(cartpole).task.episode_steps == 20
    assert make("Reacher-v5").task.episode_steps == 50
    assert make("Reacher-v5", max_episode_steps=-1).task.episode_steps is None
    envs = make("Reacher-v5", n=1, max_episode_steps=1, mode=SAME_STEP)
    envs.reset(seed=0)
    for _ in range(3):
        assert envs.step(np.zeros((1, 2)))[3].all()


def test_returned_arrays_are_the_callers(cartpole):
    for mode in (NEXT_STEP, SAME_STEP):
        a, b = make(cartpole, mode=mode), make(cartpole, mode=mode)
        spoil(a.reset(seed=0))
        b.reset(seed=0)
        for _ in range(50):
            actions = np.ones((3, 1), np.float32)
            result = a.step(actions)
            same(result, b.step(actions.copy()))
            actions[:] = -1
            spoil(result)
        mask = np.array([True, False, False])
        same(reset_by(a, mask), reset_by(b, mask))
        assert mask.tolist() == [True, False, False]


def spoil(result):
    """Overwrite all arrays in a result."""
    for value in result.values() if isinstance(result, dict) else result:
        if isinstance(value, dict | tuple):
            spoil(value)
        elif isinstance(value, np.ndarray) and value.dtype == object:
            spoil(tuple(value))
        elif value is not None:
            value[:] = 1


def test_closing():
    envs = make("Hopper-v5")
    envs.reset(seed=0)
    envs.close()
    envs.close()
    assert envs.closed
    for call in (envs.reset, lambda: envs.step(np.zeros((3, 3))), lambda: envs.np_random):
        with pytest.raises(RuntimeError, match="this TaskVectorEnv is closed"):
            call()
    with make("Hopper-v5") as envs:
        envs.reset()
    assert envs.closed


def test_rendering_is_refused():
    with pytest.raises(RuntimeError, match=r"draws nothing; gymnasium\.make gives a single one"):
        make("Hopper-v5").render()
    with pytest.raises(ValueError, match="render_mode='rgb_array': a batch of environments draws"):
        make("Hopper-v5", render_mode="rgb_array")


@pytest.mark.filterwarnings("ignore:.*A Box:UserWarning", "ignore:.*For Box action:UserWarning")
class TestSingle:
    @pytest.mark.parametrize("name", SUITE)
    def test_the_suites_pass_the_checker(self, name):
        env = gymnasium.make(f"mujoco_vecenv/{name}")
        assert env.spec.max_episode_steps == gymnasium.spec(name).max_episode_steps
        check_env(env.unwrapped, skip_render_check=True)

    def test_plain_python_passes_the_checker(self, cartpole):
        env = gymnasium.make(f"mujoco_vecenv/{cartpole}", episode_steps=30)
        assert env.unwrapped.metadata["render_fps"] == 50
        check_env(env.unwrapped)


def wrap_in_all(envs):
    return wrappers.NormalizeReward(
        wrappers.NormalizeObservation(wrappers.RecordEpisodeStatistics(wrappers.ClipAction(envs)))
    )


def timeless(wrapped):
    """Take the wall-clock time out of the episodes' statistics."""

    class Timeless(gymnasium.vector.VectorWrapper):
        def step(self, actions):
            *rest, infos = self.env.step(actions)
            if "episode" in infos:
                assert infos["episode"].pop("t").shape == (3,)
            return *rest, infos

    return Timeless(wrapped)


@pytest.mark.parametrize(
    ("wrap", "mode"),
    [
        (wrappers.RecordEpisodeStatistics, NEXT_STEP),
        (wrappers.RecordEpisodeStatistics, SAME_STEP),
        (wrappers.NormalizeObservation, NEXT_STEP),  # the only mode that it takes
        (wrappers.NormalizeReward, NEXT_STEP),
        (wrappers.NormalizeReward, SAME_STEP),
        (wrappers.ClipAction, NEXT_STEP),
        (wrappers.ClipAction, SAME_STEP),
        (wrap_in_all, NEXT_STEP),
    ],
)
def test_gymnasiums_wrappers(wrap, mode):
    a = timeless(wrap(make("Hopper-v5", mode=mode, max_episode_steps=12)))
    b = timeless(wrap(make_sync("Hopper-v5", mode=mode, max_episode_steps=12)))
    same(a.reset(seed=0), b.reset(seed=0))
    assert drive(a, b, 200, beyond=2.0) > 40


def test_statistics_of_episodes_that_are_reset_by_hand():
    envs = wrappers.RecordEpisodeStatistics(make("Hopper-v5", mode=DISABLED, max_episode_steps=4))
    envs.reset(seed=0)
    lengths = []
    for t in range(1, 20):
        *_, terminated, truncated, infos = envs.step(np.zeros((3, 3), np.float32))
        over = terminated | truncated
        if t == 2:
            over[1] = True  # give one up early, so that they end at different times
        if over.any():
            lengths += infos["episode"]["l"][infos["_episode"]].tolist() if t != 2 else []
            reset_by(envs, over)
    assert set(lengths) == {4}


def zeros_but(value):
    actions = np.zeros((3, 3))
    actions[1, 2] = value
    return actions


WRONG_ARGUMENTS = [
    (ValueError, "actions must have shape (3, 3)", lambda a: a.step(np.zeros((3, 2)))),
    (ValueError, "actions must have shape (3, 3)", lambda a: a.step(np.zeros(3))),
    (ValueError, "actions must have shape (3, 3)", lambda a: a.step([[0, 0, 0], [0], [0]])),
    (ValueError, "actions must be finite", lambda a: a.step(zeros_but(np.nan))),
    (ValueError, "actions must be finite", lambda a: a.step(zeros_but(-np.inf))),
    (TypeError, "actions must be real numbers", lambda a: a.step([["a"] * 3] * 3)),
    (TypeError, "actions must be real numbers", lambda a: a.step(np.zeros((3, 3), bool))),
    (TypeError, "actions must be real numbers", lambda a: a.step(None)),
    (ValueError, "seed must be 0 or more, got -1", lambda a: a.reset(seed=-1)),
    (TypeError, "seed must be an integer, got 1.5", lambda a: a.reset(seed=1.5)),
    (ValueError, "seed: 2 given for 3 environments", lambda a: a.reset(seed=[1, 2])),
    (ValueError, "seed[2] must be 0 or more, got -3", lambda a: a.reset(seed=[1, None, -3])),
    (TypeError, "seed[1] must be an integer, got 'b'", lambda a: a.reset(seed=[1, "b", 2])),
    (TypeError, "or one for each environment, got b'abc'", lambda a: a.reset(seed=b"abc")),
    (TypeError, "or one for each environment, got 'abc'", lambda a: a.reset(seed="abc")),
    (TypeError, "seed must be an integer, got array(1.5)", lambda a: a.reset(seed=np.array(1.5))),
    (TypeError, "options must be a dictionary", lambda a: a.reset(options=["reset_mask"])),
    (TypeError, "must be a numpy array", lambda a: reset_by(a, [True] * 3)),
    (TypeError, "must be a numpy array of bools", lambda a: reset_by(a, np.ones(3))),
    (ValueError, "must have shape (3,), got (2,)", lambda a: reset_by(a, np.ones(2, bool))),
    (ValueError, "must be True somewhere", lambda a: reset_by(a, np.zeros(3, bool))),
    (ValueError, "must be 0 or more", lambda a: reset_by(a, np.ones(3, bool), [5, 5, -1])),
]


@pytest.mark.parametrize(("error", "message", "call"), WRONG_ARGUMENTS)
def test_wrong_arguments_change_nothing(error, message, call):
    a, b = make("Hopper-v5"), make("Hopper-v5")
    same(a.reset(seed=0), b.reset(seed=0))
    drive(a, b, 3)
    with pytest.raises(error, match=re.escape(message)):
        call(a)
    assert a.np_random_seed == (0, 1, 2)
    drive(a, b, 3)
    same(a.reset(), b.reset())


def test_wrong_order():
    envs = make("Hopper-v5", mode=DISABLED, max_episode_steps=2)
    with pytest.raises(RuntimeError, match=r"step\(\) before the first reset\(\)"):
        envs.step(np.zeros((3, 3)))
    with pytest.raises(ValueError, match="must be True everywhere at the first reset"):
        reset_by(envs, np.array([True, False, True]))
    twin = make("Hopper-v5", mode=DISABLED, max_episode_steps=2)
    same(envs.reset(seed=0), twin.reset(seed=0))
    drive(envs, twin, 1)
    actions = np.zeros((3, 3), np.float32)
    same(envs.step(actions), twin.step(actions))
    with pytest.raises(RuntimeError, match="the episode of environment 0 has ended: call reset"):
        envs.step(actions)
    for mask in ([True, False, False], [False, True, True]):
        same(reset_by(envs, np.array(mask)), reset_by(twin, np.array(mask)))
    same(envs.step(actions), twin.step(actions))


def test_wrong_options():
    unknown = re.escape("unknown option 'frame_skp' (did you mean 'frame_skip'?)")
    with pytest.raises(TypeError, match=unknown):
        make("Hopper-v5", frame_skp=3)
    task = re.escape("unknown task 'Hoper-v5' (did you mean 'Hopper-v5'?)")
    with pytest.raises(ValueError, match=task):
        ours.TaskVectorEnv("Hoper-v5")
    with pytest.raises(gymnasium.error.NameNotFound, match="Hopper"):
        make("Hoper-v5")
    with pytest.raises(ValueError, match=f"threads={budget.usable_cpus() + 1} is more than"):
        make("Hopper-v5", threads=budget.usable_cpus() + 1)
    with pytest.raises(ValueError, match="num_envs must be 1 or more, got 0"):
        make("Hopper-v5", n=0)
    with pytest.raises(ValueError, match="'Never' is not a valid AutoresetMode"):
        make("Hopper-v5", mode="Never")
    with pytest.raises(ValueError, match="max_episode_steps must be -1 or more, got -2"):
        make("Hopper-v5", max_episode_steps=-2)
    with pytest.raises(ValueError, match=r"max_episode_steps must be \d+ or less, got 1180591620"):
        make("Hopper-v5", max_episode_steps=2**70)
    with pytest.raises(ValueError, match="episode_steps must be 1 or more, got 0"):
        make("Hopper-v5", max_episode_steps=0)


def test_single_environments_refuse_alike(cartpole):
    env = gymnasium.make(f"mujoco_vecenv/{cartpole}").unwrapped
    with pytest.raises(RuntimeError, match=r"step\(\) before the first reset\(\)"):
        env.step(np.zeros(1))
    env.reset(seed=0)
    with pytest.raises(ValueError, match=re.escape("actions must have shape (1,)")):
        env.step(np.zeros(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(TypeError, match="unknown option 'episode_step'"):
            gymnasium.make(f"mujoco_vecenv/{cartpole}", episode_step=3)
