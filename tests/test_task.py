"""What a task can count on, compiled and in plain Python alike, to the last bit."""

import importlib.util
import sys

import mujoco
import numpy as np
import pytest
from written_tasks import BOX, PENDULUM, assert_equal, bits, steps, write

from mujoco_vecenv.engine.actions import ActionError
from mujoco_vecenv.engine.envs import TaskEnvs
from mujoco_vecenv.engine.twin import TaskEnv
from mujoco_vecenv.tasks import make_task
from mujoco_vecenv.vector.task_vec_env import TaskVecEnv

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


FILTERED = """
def reset(rng, qvel, body_contype, body_conaffinity):
    qvel[2] = -1.0
    if rng.random() < 0.5:
        body_contype[2] = body_conaffinity[2] = 0


def observe(qpos, obs):
    obs[0:7] = qpos
"""


def test_what_may_touch_can_be_an_environments_own(tmp_path):
    fields = "('body_contype', 'body_conaffinity')"
    path = write(tmp_path, FILTERED, BOX, observations="7", episode_steps="15", model_fields=fields)
    assert_equal(path, 50)
    env = TaskEnv(make_task(path))
    heights = []
    for seed in range(8):
        env.reset(seed=seed)
        heights.append([env.step([])[0][2] for _ in range(15)][-1] > 0)
    assert heights == [np.random.default_rng(seed).random() >= 0.5 for seed in range(8)]


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
