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
    assert lean_model(full, path) is full
