"""The lean model is the published model as far as its state goes."""

import mujoco
import numpy as np
import pytest

from mujoco_vecenv.engine.lean import lean_model
from mujoco_vecenv.microduck.config import SCENES, MicroduckConfig
from mujoco_vecenv.microduck.robot import scene_path


def full_model(variant="groundcontact"):
    path = scene_path(MicroduckConfig(variant=variant))
    return mujoco.MjModel.from_xml_path(str(path)), path


def states(model, steps):
    """Return the states of a robot that flails until it lies on the floor."""
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, 0)
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(steps):
        data.ctrl[:] = rng.uniform(-1, 1, model.nu)
        mujoco.mj_step(model, data, 10)
        rows.append(np.r_[data.qpos, data.qvel, data.qacc_warmstart])
    return np.array(rows)


@pytest.mark.parametrize("variant", SCENES)
def test_same_state_to_the_last_bit(variant):
    full, path = full_model(variant)
    lean = lean_model(full, path)
    assert lean.nsensor == 0
    assert lean.ngeom == np.count_nonzero(full.geom_contype | full.geom_conaffinity) < full.ngeom
    assert states(lean, 150).tobytes() == states(full, 150).tobytes()


def test_geoms_that_give_a_body_its_mass_stay(tmp_path):
    path = tmp_path / "ball.xml"
    path.write_text(
        """<mujoco><worldbody><geom name="floor" type="plane" size="1 1 1"/><body pos="0 0 1">
        <freejoint/><geom size="0.1"/><geom size="0.2" contype="0" conaffinity="0"/>
        </body></worldbody><keyframe><key/></keyframe></mujoco>"""
    )
    full = mujoco.MjModel.from_xml_path(str(path))
    assert lean_model(full, path).ngeom == 3


def test_a_geom_of_an_explicit_pair_stays(tmp_path):
    path = tmp_path / "pair.xml"
    path.write_text(
        """<mujoco><worldbody><geom name="floor" type="plane" size="1 1 1"/><body pos="0 0 1">
        <freejoint/><inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/>
        <geom name="ball" size="0.1" contype="0" conaffinity="0"/>
        <geom name="shell" size="0.2" contype="0" conaffinity="0"/></body></worldbody>
        <contact><pair geom1="ball" geom2="floor"/></contact></mujoco>"""
    )
    full = mujoco.MjModel.from_xml_path(str(path))
    lean = lean_model(full, path)
    assert [lean.geom(i).name for i in range(lean.ngeom)] == ["floor", "ball"]


def test_a_geom_that_displaces_fluid_stays(tmp_path):
    path = tmp_path / "swimmer.xml"
    path.write_text(
        """<mujoco><option density="1000"/><worldbody><body><freejoint/>
        <inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/>
        <geom size="0.1" contype="0" conaffinity="0" fluidshape="ellipsoid"/>
        <geom size="0.2" contype="0" conaffinity="0"/></body></worldbody></mujoco>"""
    )
    full = mujoco.MjModel.from_xml_path(str(path))
    assert lean_model(full, path).ngeom == 1


def test_a_geom_that_a_tendon_wraps_stays(tmp_path):
    path = tmp_path / "tendon.xml"
    path.write_text(
        """<mujoco><worldbody><site name="a" pos="1 0 0"/><body><freejoint/>
        <inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/><site name="b" pos="-1 0 0"/>
        <geom name="wheel" size="0.1" contype="0" conaffinity="0"/></body></worldbody>
        <tendon><spatial stiffness="1"><site site="a"/><geom geom="wheel"/><site site="b"/>
        </spatial></tendon><sensor><clock/></sensor></mujoco>"""
    )
    full = mujoco.MjModel.from_xml_path(str(path))
    lean = lean_model(full, path)
    assert (lean.ngeom, lean.nsensor) == (1, 0)


@pytest.mark.parametrize(
    "name", ["body_mass", "dof_damping", "geom_friction", "actuator_biasprm", "body_invweight0"]
)
def test_where_anything_would_differ_the_model_is_left_as_it_is(name):
    full, path = full_model()
    getattr(full, name)[-1] *= 1 + 1e-15
    getattr(full, name)[0] += 1e-9
    lean = lean_model(full, path)
    assert (lean.nsensor, lean.ngeom) == (full.nsensor, full.ngeom) != (0, 0)


def tangled(seed):
    """Return a random MJCF of bodies with geoms of all kinds, one within the other."""
    rng = np.random.default_rng(seed)

    def geoms(n):
        text = ""
        for _ in range(n):
            kind = rng.choice(["sphere", "capsule", "box", "ellipsoid", "cylinder"])
            x, y, z = rng.uniform(-0.3, 0.3, 3)
            slide, spin, roll = rng.uniform(0.1, 1, 3)
            text += (
                f'<geom type="{kind}" size="0.3 0.2 0.25" pos="{x} {y} {z}" '
                f'priority="{rng.choice([0, 0, 1])}" condim="{rng.choice([1, 3, 4, 6])}" '
                f'friction="{slide} {spin} {roll}" margin="{rng.choice([0, 0.02])}" '
                f'gap="{rng.choice([0, 0.01])}"/>'
            )
        return text

    flag = {0: '<flag midphase="disable"/>', 1: '<flag filterparent="disable"/>'}.get(seed % 4, "")
    exclude = '<contact><exclude body1="a" body2="b"/></contact>' if seed % 5 == 0 else ""
    some = rng.integers(1, 3, 5)
    mocap = '<body mocap="true" pos="0.1 0.3 0">{}<body>{}</body></body>'
    mocaps = mocap.format(geoms(1), geoms(1)) + mocap.format(geoms(1), "")
    return f"""<mujoco><option>{flag}</option>
        <default><pair solreffriction="0.5 1" condim="6" adhesion="5" friction="2"/></default>
        <worldbody>{mocaps}
        <geom type="plane" size="1 1 1" pos="0 0 -0.2"/>{geoms(rng.integers(0, 3))}
        <body>{geoms(1)}</body>
        <body name="a"><freejoint/>{geoms(some[0])}<body pos="0.2 0 0.1">{geoms(some[1])}
        <body pos="0.1 0.2 0"><joint/>{geoms(some[2])}
        <body pos="0 0.1 0.1"><joint/>{geoms(some[3])}</body></body></body></body>
        <body name="b" pos="0.2 0.1 0"><freejoint/>{geoms(some[4])}</body>
        </worldbody>{exclude}</mujoco>"""


CONTACT = (
    *("geom1", "geom2", "dist", "pos", "frame", "includemargin", "friction", "solref"),
    *("solreffriction", "solimp", "mu", "H", "dim", "exclude", "efc_address"),
)


def contacts_after_two_steps(model):
    """Return all that two steps leave in the contacts, as bytes, and the state."""
    data = mujoco.MjData(model)
    mujoco.mj_step(model, data, 2)
    arrays = [np.asarray(getattr(data.contact, name)) for name in CONTACT]
    assert len(arrays[0]) > 5
    return [array.tobytes() for array in arrays], np.r_[data.qpos, data.qvel].tobytes()


@pytest.mark.parametrize("seed", range(40))
def test_pairs_make_the_contacts_that_a_search_finds_in_the_same_order(seed, tmp_path):
    path = tmp_path / "tangled.xml"
    path.write_text(tangled(seed))
    full = mujoco.MjModel.from_xml_path(str(path))
    lean = lean_model(full, path)
    assert lean.npair > 5
    assert not lean.body_contype.any()
    assert contacts_after_two_steps(lean) == contacts_after_two_steps(full)


@pytest.mark.parametrize(
    ("balls", "option", "floor", "ball", "pairs"),
    [
        (2, "", "", "", 3),
        (16, "", "", "", 0),  # of 136
        (2, "", "", 'solref="0.01 1"', 0),
        (2, "", "", 'solref="0.01 1" priority="1"', 3),
        (2, "", "", 'solmix="2"', 0),
        (2, "", "", 'adhesion="1"', 0),
        (2, '<flag override="enable"/>', "", "", 0),
        (2, '<flag speculative="enable"/>', "", "", 0),
        (1, "", 'name="geom 1"', "", 0),  # a name that a ball would be given
    ],
)
def test_pairs_are_made_only_where_they_say_the_same(balls, option, floor, ball, pairs, tmp_path):
    path = tmp_path / "balls.xml"
    bodies = "".join(
        f'<body pos="{x} 0 1"><freejoint/><geom size="0.6" {ball}/></body>' for x in range(balls)
    )
    path.write_text(
        f"""<mujoco><option>{option}</option><worldbody>
        <geom type="plane" size="1 1 1" pos="0 0 0.5" {floor}/>{bodies}</worldbody></mujoco>"""
    )
    full = mujoco.MjModel.from_xml_path(str(path))
    lean = lean_model(full, path)
    assert lean.npair == pairs
    assert lean.geom_contype.any() == (pairs == 0)
    ends = []
    for model in (full, lean):
        data = mujoco.MjData(model)
        mujoco.mj_step(model, data, 5)
        ends.append((data.ncon, data.qpos.tobytes()))
    assert ends[0] == ends[1]
    assert ends[0][0] > 0


def test_geoms_that_a_compiler_may_discard_keep_their_names(tmp_path):
    path = tmp_path / "ball.xml"
    path.write_text(
        """<mujoco><compiler discardvisual="true"/><worldbody><geom type="plane" size="1 1 1"/>
        <body pos="0 0 0.09"><freejoint/><geom size="0.1"/>
        <geom size="0.2" contype="0" conaffinity="0" mass="1"/></body></worldbody></mujoco>"""
    )
    full = mujoco.MjModel.from_xml_path(str(path))
    lean = lean_model(full, path)
    assert (lean.ngeom, lean.npair) == (2, 1)
    data = [mujoco.MjData(model) for model in (full, lean)]
    for model, its in zip((full, lean), data, strict=True):
        mujoco.mj_step(model, its, 3)
    assert data[0].ncon == data[1].ncon == 1
    assert data[0].qpos.tobytes() == data[1].qpos.tobytes()


def test_where_nothing_touches_nothing_is_looked_for(tmp_path):
    path = tmp_path / "pendulum.xml"
    path.write_text(
        """<mujoco><worldbody><geom size="1" contype="0"/><body><joint/><geom size="1" contype="0"/>
        <geom size="2" contype="0"/></body></worldbody></mujoco>"""
    )
    full = mujoco.MjModel.from_xml_path(str(path))
    lean = lean_model(full, path)
    assert lean.opt.disableflags == mujoco.mjtDisableBit.mjDSBL_CONTACT
    assert (lean.npair, lean.ngeom) == (0, 3)
    assert full.opt.disableflags == lean_model(full, path, keep_geoms=True).opt.disableflags == 0
