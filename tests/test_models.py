"""The models against the published figures, and how they stand, fall and rest."""

from functools import cache
from importlib import resources

import mujoco
import numpy as np
import pytest

from mujoco_vecenv.microduck.models import derive

MODELS = resources.files("mujoco_vecenv.microduck.models")
GROUNDCONTACT, WALK, BACKLASH, WALK_BACKLASH, ROLLERS = ALL = (
    "scene.xml",
    "scene_walk.xml",
    "scene_backlash.xml",
    "scene_walk_backlash.xml",
    "scene_rollers.xml",
)
PLAIN = (GROUNDCONTACT, WALK, BACKLASH, WALK_BACKLASH)
LYING = (GROUNDCONTACT, BACKLASH, ROLLERS)
WHEELS = ("tire", "tire_2", "tire_3", "tire_4")

# Mass; centre of mass; inertia xx yy zz xy xz yz about it.
INERTIALS = {
    "trunk_base": (
        0.199224,
        (-0.0226332, -2.70828e-05, 0.00280064),
        (0.000123975, 0.000145931, 0.000115351, 7.1651e-08, -2.06915e-05, 1.32429e-07),
    ),
    "yaw2roll": (
        0.0230406,
        (-8.8e-11, 0.00099414, 0.0168917),
        (4.1964e-06, 3.41752e-06, 2.3265e-06, 0, 0, -5.0881e-08),
    ),
    "hip_l": (
        0.00618934,
        (0.014815, 1.6179e-08, -0.00829992),
        (8.60626e-07, 1.15753e-06, 6.51588e-07, 1e-12, 3.89882e-07, -1e-12),
    ),
    "upper_leg_left": (
        0.0482067,
        (0.006766, 0.0228838, 0.0134531),
        (1.68753e-05, 1.03691e-05, 1.98269e-05, -4.41852e-06, 2.27982e-07, 3.89298e-07),
    ),
    "leg": (
        0.0215844,
        (-1.52e-10, 0.0318937, -0.00953505),
        (5.25056e-06, 2.15507e-06, 4.33925e-06, -1e-12, 0, 7.65005e-07),
    ),
    "ankle_left": (
        0.0300246,
        (-0.00615742, -0.0137483, -0.0156585),
        (5.91525e-06, 1.11534e-05, 7.74016e-06, -2.05354e-07, 8.218e-08, 5.6722e-08),
    ),
    "neck": (0.0368414, (0, -0.025, 0.0141665), (1.72925e-05, 3.12694e-06, 1.63707e-05, 0, 0, 0)),
    "neck_pitch": (
        0.00572,
        (-6.533e-09, 0.0116641, -0.0145),
        (1.09186e-06, 9.66855e-07, 5.12111e-07, 0, 0, 0),
    ),
    "yaw_roll_motion": (
        0.0486,
        (-0.000166657, -0.00500964, 0.0178065),
        (6.97903e-06, 8.10293e-06, 9.57884e-06, 3.21657e-07, -3.4797e-08, 3.4295e-07),
    ),
    "jaw_soft": (
        0.188766,
        (0.00460523, 0.00120047, -0.0324761),
        (0.000320811, 0.0002541, 0.000149882, -6.32293e-07, 6.57153e-06, 4.18477e-06),
    ),
    "bearing_roll": (
        0.0230406,
        (-8.8e-11, 0.00099414, 0.0168917),
        (4.1964e-06, 3.41752e-06, 2.3265e-06, 0, 0, -5.0881e-08),
    ),
    "hip_l_2": (
        0.00618934,
        (0.014815, 1.6212e-08, -0.00829992),
        (8.60626e-07, 1.15753e-06, 6.51588e-07, 1e-12, 3.89882e-07, -1e-12),
    ),
    "upper_leg_right": (
        0.0482067,
        (-0.006766, 0.0228838, 0.0134531),
        (1.68753e-05, 1.03691e-05, 1.98269e-05, 4.41852e-06, -2.27982e-07, 3.89298e-07),
    ),
    "leg_2": (
        0.0215844,
        (-0.0318937, -1.52e-10, -0.00953505),
        (2.15507e-06, 5.25056e-06, 4.33925e-06, 1e-12, -7.65005e-07, 0),
    ),
    "ankle_right": (
        0.0300251,
        (0.00615539, -0.0137482, -0.0156566),
        (5.91534e-06, 1.11534e-05, 7.74015e-06, 2.04877e-07, -8.2467e-08, 5.7017e-08),
    ),
}

# They replace and join the above on wheels.
ROLLER_INERTIALS = {
    "ankle_left": (
        0.02087,
        (-0.00680626, -0.0143677, -0.0151851),
        (4.85529e-06, 9.6767e-06, 8.22681e-06, -3.18897e-07, 5.6657e-08, 1.31522e-07),
    ),
    "ankle_right": (
        0.0208701,
        (0.00680653, -0.0143679, -0.0149822),
        (4.8595e-06, 9.68066e-06, 8.22663e-06, 3.18865e-07, -6.7107e-08, 1.66791e-07),
    ),
} | {
    wheel: (0.00447401, (0, 0, 0), (2.8556e-07, 2.8556e-07, 5.3687e-07, 0, -6e-12, 0))
    for wheel in WHEELS
}

# Parent, position, quaternion.
POSES = {
    "trunk_base": ("world", (0, 0, 0.12), (1, 0, 0, 0)),
    "yaw2roll": ("trunk_base", (0.006, 0.0175, -0.005), (0, -0.707107, -0.707107, 0)),
    "hip_l": ("yaw2roll", (0, 0.0165, 0.0125), (0.707107, -0.707107, 0, 0)),
    "upper_leg_left": ("hip_l", (0.025, 0, -0.0185), (0.5, -0.5, 0.5, -0.5)),
    "leg": ("upper_leg_left", (0.022, 0.0357771, -0.004), (0, 0.707107, 0.707107, 0)),
    "ankle_left": ("leg", (0, 0.042, -0.026), (0, -1, 0, 0)),
    "neck": ("trunk_base", (0.026, 0.0145, 0.0324215), (0, 0, 0.707107, -0.707107)),
    "neck_pitch": ("neck", (0, -0.05, 0), (0, 1, 0, 0)),
    "yaw_roll_motion": ("neck_pitch", (0, 0.0186931, -0.0145), (0, 0, -0.707107, -0.707107)),
    "jaw_soft": ("yaw_roll_motion", (-0.0179, 0, 0.0145), (0.707107, 0, -0.707107, 0)),
    "bearing_roll": ("trunk_base", (0.006, -0.0175, -0.005), (0, -0.707107, -0.707107, 0)),
    "hip_l_2": ("bearing_roll", (0, 0.0165, 0.0125), (0, 0, 0.707107, 0.707107)),
    "upper_leg_right": ("hip_l_2", (0.025, 0, -0.0185), (0.5, -0.5, 0.5, -0.5)),
    "leg_2": ("upper_leg_right", (-0.022, 0.0357771, -0.004), (0, 1, 0, 0)),
    "ankle_right": ("leg_2", (-0.042, 0, -0.026), (0, -0.707107, -0.707107, 0)),
}
ROLLER_POSES = {
    "tire": ("ankle_left", (-0.0395, -0.0325, -0.0147), (1, 0, 0, 0)),
    "tire_2": ("ankle_left", (0.0255, -0.0325, -0.0147), (1, 0, 0, 0)),
    "tire_3": ("ankle_right", (0.0395, -0.0325, -0.0144819), (0, 0, 1, 0)),
    "tire_4": ("ankle_right", (-0.0255, -0.0325, -0.0144819), (0, 0, 1, 0)),
}

# In the order of the actuators.
RANGES = {
    "left_hip_yaw": (-0.4363323129985824, 0.5235987755982988),
    "left_hip_roll": (-0.3839724354386992, 0.38397243543880577),
    "left_hip_pitch": (-1.570796326794949, 1.5707963267948442),
    "left_knee": (-1.5707963267948983, 1.5707963267948948),
    "left_ankle": (-1.5707963267949063, 1.5707963267948868),
    "neck_pitch": (-1.5707963267948974, 1.0471975511965967),
    "head_pitch": (-1.5707963267948966, 1.5707963267948966),
    "head_yaw": (-2.9670597283903613, 2.9670597283903595),
    "head_roll": (-0.43633231299858327, 0.4363323129985815),
    "right_hip_yaw": (-0.523598775598297, 0.43633231299858416),
    "right_hip_roll": (-0.3839724354387507, 0.38397243543875426),
    "right_hip_pitch": (-1.57079632679494, 1.570796326794853),
    "right_knee": (-1.5707963267949339, 1.5707963267948593),
    "right_ankle": (-1.5707963267949028, 1.5707963267948903),
}
STAND = (0, -0.0873, -0.5236, 0, 0.5236, 0.3491, -0.3491, 0, 0, 0, 0.0873, 0.5236, 0, -0.5236)
STAND2 = (
    *(0, -0.08726646259971647, -0.457924, -0.004940, 0.452984),
    *(0.3490658503988659, -0.3490658503988659, 0, 0),
    *(0, 0.08726646259971647, 0.457924, 0.004940, -0.452984),
)

# Body, position, quaternion; and the feet's positions on wheels.
SITES = {
    "imu": ("trunk_base", (-0.021, 6.64098e-05, -0.0146984), (1, 0, 0, 0)),
    "left_foot": (
        "ankle_left",
        (0, -0.0238146, -0.0140852),
        (0, 0, -0.707107, -0.707107),
    ),
    "right_foot": (
        "ankle_right",
        (0, -0.0238146, -0.0140852),
        (0.707107, -0.707107, 0, 0),
    ),
    "head_camera": (
        "jaw_soft",
        (0.0155, -9.13778e-05, -0.0733),
        (0.707107, 0, 0.707107, 0),
    ),
}
ROLLER_FEET = {"left_foot": (0, -0.0475, -0.0147), "right_foot": (0, -0.0475, -0.0144819)}

SENSORS = {
    "orientation": (mujoco.mjtSensor.mjSENS_FRAMEQUAT, "imu", 0.001),
    "angular-velocity": (mujoco.mjtSensor.mjSENS_GYRO, "imu", 0.005),
    "imu_ang_vel": (mujoco.mjtSensor.mjSENS_GYRO, "imu", 0),
    "imu_lin_vel": (mujoco.mjtSensor.mjSENS_VELOCIMETER, "imu", 0),
    "imu_accel": (mujoco.mjtSensor.mjSENS_ACCELEROMETER, "imu", 0),
    "root_angmom": (mujoco.mjtSensor.mjSENS_SUBTREEANGMOM, "trunk_base", 0),
}

SHELLS = {"battery", "left_hip", "right_hip", "head_top", "jaw", "head_bottom"}
SHINS = {"left_shin", "right_shin"}
SOLES = {"left_sole", "right_sole"}
TOUCH_FLOOR = {
    GROUNDCONTACT: SHELLS | SHINS | SOLES,
    WALK: SOLES,
    BACKLASH: SHELLS | SHINS | SOLES,
    WALK_BACKLASH: SOLES,
    ROLLERS: SHELLS | SHINS | {f"{wheel}_wheel" for wheel in WHEELS},
}

# How the robot is let go, as trunk quaternions: upright, leaning, on its side, face and back.
ORIENTATIONS = {
    "upright": (1, 0, 0, 0),
    "leaning sideways": (1, 0.3, 0, 0),
    "leaning forward": (1, 0, 0.4, 0),
    "leaning back": (1, 0, -0.4, 0),
    "on the right side": (1, 1, 0, 0),
    "on the left side": (1, -1, 0, 0),
    "upside down": (0, 1, 0, 0),
    "prone": (1, 0, 1, 0),
    "supine": (1, 0, -1, 0),
}


@cache
def load(filename: str) -> mujoco.MjModel:
    """The compiled model; the tests share it, so they leave it as it is."""
    with resources.as_file(MODELS / filename) as path:
        return mujoco.MjModel.from_xml_path(str(path))


def in_stand(model: mujoco.MjModel, key: str = "STAND") -> mujoco.MjData:
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, model.key(key).id)
    mujoco.mj_forward(model, data)
    return data


def touching(model: mujoco.MjModel, data: mujoco.MjData) -> set[frozenset[str]]:
    return {frozenset(model.geom(geom).name for geom in contact.geom) for contact in data.contact}


def assert_same_rotation(quat, expected):
    expected = np.asarray(expected) / np.linalg.norm(expected)
    assert abs(np.dot(quat, expected)) == pytest.approx(1, abs=1e-9)


# --- the published figures ---


@pytest.mark.parametrize(
    ("filename", "nq", "nv"),
    [
        (GROUNDCONTACT, 21, 20),
        (WALK, 21, 20),
        (BACKLASH, 35, 34),
        (WALK_BACKLASH, 35, 34),
        (ROLLERS, 25, 24),
    ],
)
def test_sizes(filename, nq, nv):
    model = load(filename)
    assert (model.nq, model.nv, model.nu) == (nq, nv, 14)


@pytest.mark.parametrize("filename", ALL)
def test_options_are_the_defaults_but_for_the_timestep(filename):
    options, defaults = load(filename).opt, mujoco.MjSpec().compile().opt
    assert options.timestep == 0.002
    for name in ("integrator", "solver", "cone", "iterations", "tolerance", "disableflags"):
        assert getattr(options, name) == getattr(defaults, name), name
    assert options.enableflags == 0
    assert np.array_equal(options.gravity, defaults.gravity)


@pytest.mark.parametrize("filename", ALL)
def test_the_free_joint_comes_first(filename):
    joint = load(filename).joint(0)
    assert (joint.name, joint.type[0]) == ("trunk_base_freejoint", mujoco.mjtJoint.mjJNT_FREE)


@pytest.mark.parametrize("filename", ALL)
def test_actuators(filename):
    model = load(filename)
    assert [model.actuator(i).name for i in range(model.nu)] == list(RANGES)
    assert [model.joint(i).name for i in model.actuator_trnid[:, 0]] == list(RANGES)
    assert np.array_equal(model.actuator_gainprm[:, 0], [0.55] * 14)
    assert np.array_equal(model.actuator_biasprm[:, :3], [[0, -0.55, 0]] * 14)
    assert np.array_equal(model.actuator_ctrlrange, [[-10, 10]] * 14)
    assert np.array_equal(model.actuator_forcerange, [[-0.96, 0.96]] * 14)


@pytest.mark.parametrize("filename", ALL)
def test_servo_joints(filename):
    model = load(filename)
    joints = [model.joint(name) for name in RANGES]
    assert {name: tuple(model.joint(name).range) for name in RANGES} == RANGES
    assert all(joint.type[0] == mujoco.mjtJoint.mjJNT_HINGE for joint in joints)
    assert all(np.array_equal(joint.axis, [0, 0, 1]) for joint in joints)
    assert {joint.damping[0] for joint in joints} == {0.053}
    assert {joint.frictionloss[0] for joint in joints} == {0.0048}
    assert {joint.armature[0] for joint in joints} == {0.0018}


@pytest.mark.parametrize("filename", ALL)
def test_servos_follow_the_actuators_in_qpos(filename):
    model = load(filename)
    addresses = [int(model.joint(name).qposadr[0]) for name in RANGES]
    step = 2 if filename in (BACKLASH, WALK_BACKLASH) else 1
    wheels = [0] * 5 + [2 if filename == ROLLERS else 0] * 9  # the left foot's come between
    assert addresses == [7 + step * i + wheel for i, wheel in enumerate(wheels)]


@pytest.mark.parametrize("filename", [BACKLASH, WALK_BACKLASH])
def test_backlash(filename):
    model = load(filename)
    for name in RANGES:
        servo, play = model.joint(name), model.joint(f"passive_{name}_backlash")
        assert play.id == servo.id + 1
        assert play.bodyid[0] == servo.bodyid[0]
        assert np.array_equal(play.axis, servo.axis)
        assert tuple(play.range) == (-0.017453292519943295, 0.017453292519943295)
        assert (play.damping[0], play.armature[0], play.frictionloss[0]) == (0.01, 0.001, 0)
        assert np.array_equal(model.jnt_solref[play.id], [0.01, 1])
        assert np.array_equal(model.jnt_solimp[play.id], [0.95, 0.999, 0.0001, 0.5, 2])


def test_wheels():
    model = load(ROLLERS)
    joints = {
        "tire": "passive_LF_wheel",
        "tire_2": "passive_LR_wheel",
        "tire_3": "passive_RF_wheel",
        "tire_4": "passive_RR_wheel",
    }
    for wheel, name in joints.items():
        joint = model.joint(name)
        assert joint.bodyid[0] == model.body(wheel).id
        assert not model.jnt_limited[joint.id]
        assert np.array_equal(joint.axis, [0, 0, 1])
        assert (joint.damping[0], joint.frictionloss[0], joint.armature[0]) == (0, 0, 0.0001)
        assert np.array_equal(model.geom(f"{wheel}_wheel").size, [0.015, 0.015, 0.004])


@pytest.mark.parametrize("filename", ALL)
def test_body_poses(filename):
    model = load(filename)
    poses = POSES | ROLLER_POSES if filename == ROLLERS else POSES
    assert model.nbody == 1 + len(poses)
    for name, (parent, pos, quat) in poses.items():
        body = model.body(name)
        assert model.body(int(body.parentid[0])).name == parent
        assert np.array_equal(body.pos, pos), name
        assert_same_rotation(body.quat, quat)


@pytest.mark.parametrize("filename", ALL)
def test_inertials(filename):
    model = load(filename)
    inertials = INERTIALS | ROLLER_INERTIALS if filename == ROLLERS else INERTIALS
    for name, (mass, centre, full) in inertials.items():
        body = model.body(name)
        xx, yy, zz, xy, xz, yz = full
        expected = np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
        axes = np.empty(9)
        mujoco.mju_quat2Mat(axes, body.iquat)
        axes = axes.reshape(3, 3)
        assert body.mass[0] == mass, name
        assert np.array_equal(body.ipos, centre), name
        inertia = axes @ np.diag(body.inertia) @ axes.T
        assert np.allclose(inertia, expected, rtol=0, atol=1e-6 * expected.max()), name


@pytest.mark.parametrize("filename", PLAIN)
def test_total_mass(filename):
    assert load(filename).body_mass.sum() == pytest.approx(0.73724318, abs=1e-9)


def test_total_mass_on_wheels():
    # 0.73724318 less two soled ankles, plus two bare ones and four wheels.
    assert load(ROLLERS).body_mass.sum() == pytest.approx(0.73682962, abs=1e-9)


@pytest.mark.parametrize("filename", ALL)
def test_sites(filename):
    model = load(filename)
    assert model.nsite == len(SITES)
    for name, (body, pos, quat) in SITES.items():
        site = model.site(name)
        if filename == ROLLERS:
            pos = ROLLER_FEET.get(name, pos)
        assert model.body(int(site.bodyid[0])).name == body
        assert np.array_equal(site.pos, pos), name
        assert_same_rotation(site.quat, quat)


@pytest.mark.parametrize("filename", ALL)
def test_head_camera(filename):
    model = load(filename)
    camera = model.camera("head_camera")
    assert model.body(int(camera.bodyid[0])).name == "jaw_soft"
    assert np.array_equal(camera.pos, [0.0155, -9.13778e-05, -0.0733])
    assert_same_rotation(camera.quat, (0, 0, 0, 1))


@pytest.mark.parametrize("filename", ALL)
def test_sensors(filename):
    model = load(filename)
    assert [model.sensor(i).name for i in range(model.nsensor)] == list(SENSORS)
    for name, (kind, of, noise) in SENSORS.items():
        sensor = model.sensor(name)
        what = mujoco.mj_id2name(model, int(sensor.objtype[0]), int(sensor.objid[0]))
        assert (sensor.type[0], what, sensor.noise[0]) == (kind, of, noise)


@pytest.mark.parametrize("filename", ALL)
def test_keyframes(filename):
    model = load(filename)
    assert [model.key(i).name for i in range(model.nkey)] == ["STAND", "STAND2"]
    servos = [int(model.joint(name).qposadr[0]) for name in RANGES]
    for name, angles in (("STAND", STAND), ("STAND2", STAND2)):
        qpos, ctrl = model.key(name).qpos, model.key(name).ctrl
        assert tuple(qpos[:7]) == (0, 0, 0.12, 1, 0, 0, 0)
        assert tuple(qpos[servos]) == angles
        assert tuple(ctrl) == angles
        assert np.count_nonzero(qpos[7:]) == np.count_nonzero(angles)
        assert not model.key(name).qvel.any()


# --- shapes ---


@pytest.mark.parametrize("filename", ALL)
def test_what_can_touch_the_floor(filename):
    model = load(filename)
    floor = model.geom("floor")
    assert (floor.contype[0], floor.conaffinity[0]) == (1, 1)
    groups = {model.geom(i).name: int(model.geom(i).contype[0]) for i in range(model.ngeom)}
    assert np.array_equal(model.geom_contype, model.geom_conaffinity)
    ground = {name for name, group in groups.items() if group == 1} - {"floor"}
    assert ground == TOUCH_FLOOR[filename]
    assert len(ground) == {ROLLERS: 12, WALK: 2, WALK_BACKLASH: 2}.get(filename, 10)
    self_only = {name for name, group in groups.items() if group == 2}
    walks = filename in (WALK, WALK_BACKLASH)
    assert self_only == {"power_support"} | (SHINS if walks else set())


@pytest.mark.parametrize("filename", ALL)
def test_only_primitives(filename):
    model = load(filename)
    assert model.nmesh == 0
    assert model.nhfield == 0


@pytest.mark.parametrize("filename", ALL)
def test_visual_shapes_touch_nothing_and_weigh_nothing(filename):
    with resources.as_file(MODELS / filename) as path:
        spec = mujoco.MjSpec.from_file(str(path))
    model = load(filename)
    named = {model.geom(i).name for i in range(model.ngeom)} - {""}
    for geom in list(spec.geoms):
        if geom.name not in named or not geom.name:
            assert (geom.contype, geom.conaffinity, geom.group) == (0, 0, 2)
            spec.delete(geom)
    bare = spec.compile()
    assert 0 < bare.ngeom < model.ngeom
    for field in ("body_mass", "body_ipos", "body_iquat", "body_inertia"):
        assert np.array_equal(getattr(bare, field), getattr(model, field)), field


@pytest.mark.parametrize("filename", PLAIN)
def test_soles_stand_flat_on_the_floor(filename):
    model = load(filename)
    assert model.geom("floor").pos[2] == 0
    data = in_stand(model)
    assert data.body("trunk_base").xpos[2] == 0.12
    signs = np.array(np.meshgrid(*[[-1, 1]] * 3)).reshape(3, -1)
    for name in sorted(SOLES):
        size = model.geom(name).size
        assert sorted(np.round(2e3 * size)) == [4, 33, 55]
        corners = data.geom(name).xmat.reshape(3, 3) @ (signs * size[:, None])
        heights = np.sort(data.geom(name).xpos[2] + corners[2])
        assert np.abs(heights[:4]).max() < 1e-4


def test_feet_mirror_each_other():
    model = load(GROUNDCONTACT)
    data = in_stand(model)
    for left in ("left_sole", "left_shin", "left_hip"):
        right = left.replace("left", "right")
        mirrored = data.geom(right).xpos * [1, -1, 1]
        assert np.allclose(data.geom(left).xpos, mirrored, rtol=0, atol=1e-6), left


def test_wheels_reach_the_floor_of_their_model():
    """The published figures put the wheels 20.7 mm lower than the soles; so is the floor."""
    model = load(ROLLERS)
    data = in_stand(model)
    assert data.body("trunk_base").xpos[2] == 0.12
    assert model.geom("floor").pos[2] == -0.0207
    for wheel in WHEELS:
        axis = data.body(wheel).xmat.reshape(3, 3)[:, 2]
        assert abs(axis[1]) > 0.99  # across the robot
        size = model.geom(f"{wheel}_wheel").size
        below = np.linalg.norm(size * data.geom(f"{wheel}_wheel").xmat.reshape(3, 3)[2])
        assert data.body(wheel).xpos[2] - below == pytest.approx(-0.0207, abs=1e-4)


@pytest.mark.parametrize("filename", ALL)
def test_stand_touches_only_the_floor(filename):
    model = load(filename)
    data = in_stand(model)
    for _ in range(25):  # 0.05 s: the feet have met the floor and the robot still stands
        assert all("floor" in pair for pair in touching(model, data))
        mujoco.mj_step(model, data)
    feet = {next(iter(pair - {"floor"})) for pair in touching(model, data)}
    assert feet == TOUCH_FLOOR[filename] - SHELLS - SHINS


# --- behaviour ---


@pytest.mark.parametrize("filename", ALL)
@pytest.mark.parametrize("key", ["STAND", "STAND2"])
def test_a_held_stand_topples(filename, key):
    """Upstream's meshes take 0.65 to 0.79 s: the servos are too soft to stand still by holding."""
    model = load(filename)
    data = in_stand(model, key)
    while data.body("trunk_base").xmat[8] >= 0.9 and data.time < 3:
        mujoco.mj_step(model, data)
    assert 0.3 < data.time < 2.5


def drop(filename: str, orientation: tuple[float, ...], seconds: float = 5) -> mujoco.MjData:
    """Let the robot fall without its servos and return the state it comes to rest in."""
    model = load(filename)
    data = in_stand(model)
    data.qpos[2] = 0.25
    data.qpos[3:7] = np.asarray(orientation) / np.linalg.norm(orientation)
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_ACTUATION
    try:
        while data.time < seconds:
            mujoco.mj_step(model, data)
        mujoco.mj_forward(model, data)
    finally:
        model.opt.disableflags = 0
    return data


def speeds(model: mujoco.MjModel, data: mujoco.MjData) -> np.ndarray:
    """Every speed but that of the wheels, which nothing brakes once they hang in the air."""
    wheels = [i for i in range(model.njnt) if model.joint(i).name.endswith("_wheel")]
    return np.abs(np.delete(data.qvel, model.jnt_dofadr[wheels]))


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("filename", LYING)
def test_a_limp_robot_lies_still_on_the_floor(filename, orientation):
    model = load(filename)
    data = drop(filename, ORIENTATIONS[orientation])
    height = data.body("trunk_base").xpos[2] - model.geom("floor").pos[2]
    assert -0.01 < height < 0.07  # of the trunk frame, which is all but on its front side
    assert orientation != "upright" or height > 0.02
    assert speeds(model, data).max() < 0.2
    assert data.ncon > 0
    assert min(contact.dist for contact in data.contact) > -0.001
    colliding = model.geom_contype == 1
    colliding[model.geom("floor").id] = False
    centres = data.geom_xpos[colliding, 2] - model.geom("floor").pos[2]
    assert centres.min() > 0.001
    assert not data.warning.number.any()


@pytest.mark.parametrize("filename", [WALK, WALK_BACKLASH])
def test_a_limp_walker_hangs_by_its_soles(filename):
    """Only the soles meet the floor there, so the rest comes to hang under it."""
    model = load(filename)
    for orientation in ("upright", "prone", "supine"):
        data = drop(filename, ORIENTATIONS[orientation])
        assert data.body("trunk_base").xpos[2] < 0
        assert speeds(model, data).max() < 0.2
        assert all(abs(data.geom(sole).xpos[2]) < 0.01 for sole in SOLES)
        assert min(contact.dist for contact in data.contact) > -0.001
        assert not data.warning.number.any()


# --- derivation ---


def test_the_committed_files_are_the_derived_ones():
    derived = derive.derive((MODELS / GROUNDCONTACT).read_text(encoding="utf-8"))
    assert set(derived) == set(ALL) - {GROUNDCONTACT}
    for filename, text in derived.items():
        assert (MODELS / filename).read_text(encoding="utf-8") == text, (
            f"{filename} is stale: run python -m mujoco_vecenv.microduck.models.derive"
        )
