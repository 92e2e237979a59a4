"""Domain randomisation: ranges, order of draws, exactness, and neighbours left alone."""

from types import SimpleNamespace

import mujoco
import numpy as np
import pytest

from mujoco_vecenv import DomainRandomizer, DRConfig, MicroduckEnv, VecEnv, contract
from mujoco_vecenv.microduck.config import MicroduckConfig
from mujoco_vecenv.microduck.randomization import (
    SERVO_FITS,
    SERVO_HI,
    SERVO_LO,
    Factors,
    draw_factors,
)
from mujoco_vecenv.microduck.robot import scene_path

DEFAULTS = {
    "actuator": True,
    "mass_scale": (0.85, 1.15),
    "floor_friction": (0.6, 1.2),
    "latency": (0, 2),
    "init_noise": (0.02, 0.3),
    "sensor_noise": True,
}


def model_of(variant="groundcontact"):
    return mujoco.MjModel.from_xml_path(str(scene_path(MicroduckConfig(variant=variant))))


def arrays(model):
    names = [n for n in dir(model) if not n.startswith("_")]
    return {n: v.tobytes() for n in names if isinstance(v := getattr(model, n), np.ndarray)}


def test_ranges_are_the_least_and_greatest_of_the_four_fits():
    assert len(SERVO_FITS) == 4
    assert SERVO_LO.tolist() == [0.041, 0.0048, 0.0017, 0.386, 0.67]
    assert SERVO_HI.tolist() == [0.053, 0.032, 0.002, 0.55, 0.96]
    model = model_of()
    nominal = SERVO_FITS["chosen_actuator"]
    assert (model.dof_damping[6], model.dof_frictionloss[6], model.dof_armature[6]) == nominal[:3]
    assert (model.actuator_gainprm[0, 0], model.actuator_forcerange[0, 1]) == nominal[3:]


def test_defaults_are_the_contracts():
    assert {name: getattr(DRConfig(), name) for name in DEFAULTS} == DEFAULTS
    assert DRConfig().recompute_constants is False


def test_samples_stay_inside_the_ranges_and_cover_them():
    rng = np.random.default_rng(0)
    drawn = np.array([draw_factors(rng, DRConfig()).as_vector()[:7] for _ in range(3000)])
    low = np.array([*SERVO_LO, 0.85, 0.6])
    high = np.array([*SERVO_HI, 1.15, 1.2])
    assert (drawn >= low).all()
    assert (drawn <= high).all()
    share = (drawn - low) / (high - low)
    assert (share.min(axis=0) < 0.01).all()
    assert (share.max(axis=0) > 0.99).all()
    assert np.abs(share.mean(axis=0) - 0.5).max() < 0.03


def test_draws_come_in_the_contracts_order():
    env = MicroduckEnv(seed=17, dr=True)
    env.reset()
    rng = np.random.default_rng(17)
    servo = rng.uniform(SERVO_LO, SERVO_HI)
    mass, friction = rng.uniform(0.85, 1.15), rng.uniform(0.6, 1.2)
    latency, noise = rng.integers(0, 3), rng.uniform(0.02, 0.3)
    angles = env.robot.default + rng.uniform(-noise, noise, 14)
    episode = env.episode
    assert episode.factors.as_vector().tolist() == [*servo, mass, friction, False]
    assert episode.latency == latency
    assert episode.sensor_noise is True
    assert episode.angles.tolist() == np.clip(angles, env.robot.lo, env.robot.hi).tolist()
    assert env.model.body_mass[3] == model_of().body_mass[3] * mass


def test_latency_covers_both_ends():
    env = MicroduckEnv(dr=True)
    env.reset(seed=0)
    drawn = set()
    for _ in range(60):
        env.reset()
        drawn.add(env.episode.latency)
    assert drawn == {0, 1, 2}


def test_without_actuator_nothing_is_drawn_for_the_servo():
    rng, other = np.random.default_rng(1), np.random.default_rng(1)
    factors = draw_factors(rng, DRConfig(actuator=False))
    assert factors.servo is None
    assert factors.mass_scale == other.uniform(0.85, 1.15)


def test_none_draws_nothing_and_changes_nothing():
    with VecEnv(2, dr=DRConfig.none()) as one, VecEnv(2) as other:
        for _ in range(3):
            ours, theirs = one.step(np.ones((2, 14))), other.step(np.ones((2, 14)))
            assert ours[0].tobytes() == theirs[0].tobytes()


def test_what_factors_change():
    model, before = model_of("groundcontact_backlash"), model_of("groundcontact_backlash")
    servo = np.array([0.05, 0.02, 0.0019, 0.4, 0.8])
    DomainRandomizer(model).apply(Factors(servo, 1.1, 0.7))
    dofs = list(range(6, 34, 2))
    passive = list(range(7, 35, 2))
    for name, value in zip(("damping", "frictionloss", "armature"), servo, strict=False):
        ours, nominal = getattr(model, f"dof_{name}"), getattr(before, f"dof_{name}")
        assert ours[dofs].tolist() == [value] * 14
        assert ours[passive].tolist() == nominal[passive].tolist()
        assert ours[:6].tolist() == nominal[:6].tolist()
    assert model.actuator_gainprm[:, 0].tolist() == [0.4] * 14
    assert (
        model.actuator_biasprm[:, 1].tolist()
        == (before.actuator_biasprm[:, 1] * (0.4 / 0.55)).tolist()
    )
    assert model.actuator_forcerange.tolist() == [[-0.8, 0.8]] * 14
    assert model.body_mass.tolist() == (before.body_mass * 1.1).tolist()
    assert model.body_inertia.tolist() == (before.body_inertia * 1.1).tolist()
    floor = model.geom("floor").id
    assert model.geom_friction[floor, 0] == before.geom_friction[floor, 0] * 0.7
    assert model.geom_friction[floor, 1:].tolist() == before.geom_friction[floor, 1:].tolist()
    assert (
        np.delete(model.geom_friction, floor, 0).tolist()
        == np.delete(before.geom_friction, floor, 0).tolist()
    )
    assert model.dof_M0.tolist() == before.dof_M0.tolist()  # constants are left behind


@pytest.mark.parametrize("recompute", [False, True])
def test_restore_is_exact_and_nothing_compounds(recompute):
    model = model_of()
    untouched = arrays(model)
    randomizer = DomainRandomizer(model, DRConfig(recompute_constants=recompute))
    rng = np.random.default_rng(0)
    first = randomizer.sample(rng)
    randomizer.apply(first)
    once = arrays(model)
    changed = {name for name in once if once[name] != untouched[name]}
    assert ("dof_M0" in changed) == recompute
    for _ in range(100):
        randomizer.apply(randomizer.sample(rng))
    randomizer.apply(first)
    assert arrays(model) == once
    randomizer.restore()
    assert arrays(model) == untouched


def test_recomputed_constants_are_those_of_a_model_compiled_so():
    path = scene_path(MicroduckConfig())
    spec = mujoco.MjSpec.from_file(str(path))
    for body in spec.bodies:
        body.mass *= 1.15
        body.fullinertia = [x * 1.15 for x in body.fullinertia]
    compiled = spec.compile()
    model = model_of()
    DomainRandomizer(model).apply(Factors(None, 1.15, None, recompute_constants=True))
    assert np.allclose(model.body_invweight0, compiled.body_invweight0, rtol=1e-9, atol=0)
    assert not np.allclose(model.body_invweight0[1:], model_of().body_invweight0[1:], rtol=1e-2)


@pytest.mark.parametrize("backend", ["batch", "sync"])
def test_an_environments_physics_leaves_its_neighbours_bits_alone(backend):
    keywords = {"backend": backend, "episode_steps": 60}
    with VecEnv(3, **keywords) as one, VecEnv(3, **keywords) as other:
        episode = other.record()[1]
        for recompute in (False, True):
            episode.factors = Factors(SERVO_LO.copy(), 1.15, 0.6, recompute)
            one.reset(seed=2)
            other.reset(seed=2, episodes={1: episode})
            for _ in range(50):
                ours, theirs = one.step(np.ones((3, 14))), other.step(np.ones((3, 14)))
                for i in (0, 2):
                    assert ours[0][i].tobytes() == theirs[0][i].tobytes()
                    assert ours[1][i] == theirs[1][i]
            assert ours[0][1].tobytes() != theirs[0][1].tobytes()


def test_an_episode_after_a_randomised_one_has_the_untouched_physics():
    keywords = {"episode_steps": 30, "with_terms": True}
    with VecEnv(2, backend="sync", **keywords) as one, VecEnv(2, **keywords) as other:
        episodes = one.record()
        for recompute in (True, False):
            for episode in episodes:
                episode.factors = Factors(SERVO_HI.copy(), 0.85, 1.2, recompute)
            first = one.reset(seed=1, episodes=episodes)
            assert first.tobytes() == other.reset(seed=1, episodes=episodes).tobytes()
            assert contract.compare(one, other, 70, seed=0).equal


class LikeAConfig(SimpleNamespace):
    pass


@pytest.mark.parametrize(
    "dr",
    [
        DRConfig(),
        True,
        LikeAConfig(**DEFAULTS),
        SimpleNamespace(config=LikeAConfig(**DEFAULTS)),
        SimpleNamespace(cfg=DRConfig()),
        DomainRandomizer(model_of()),
        LikeAConfig(**{**DEFAULTS, "mass_scale": [0.85, 1.15], "latency": np.array([0, 2])}),
    ],
)
def test_what_dr_accepts(dr):
    assert MicroduckConfig(dr=dr).dr == DRConfig()
    assert MicroduckEnv(dr=dr).config.dr == DRConfig()


@pytest.mark.parametrize("dr", [None, False])
def test_what_means_no_dr(dr):
    assert MicroduckConfig(dr=dr).dr is None


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: MicroduckConfig(dr="yes"), TypeError, "dr must be True, False, None.*'actuator'"),
        (
            lambda: MicroduckConfig(dr=LikeAConfig(actuator=True)),
            TypeError,
            "has no 'mass_scale'",
        ),
        (lambda: DRConfig(actuator=1), TypeError, "dr: actuator must be True or False"),
        (lambda: DRConfig(mass_scale=(0, 1)), ValueError, "dr: mass_scale must be above 0"),
        (lambda: DRConfig(mass_scale=1.1), TypeError, "dr: mass_scale must be two numbers"),
        (lambda: DRConfig(floor_friction=(1.2, 0.6)), ValueError, "dr: floor_friction must be"),
        (lambda: DRConfig(latency=(0, 1.5)), TypeError, "dr: latency must be an integer"),
        (lambda: DRConfig(init_noise=(0, float("nan"))), ValueError, "dr: init_noise must be fini"),
        (
            lambda: MicroduckConfig(dr=DRConfig(latency=(0, 9)), episode_steps=9),
            ValueError,
            "dr: latency up to 9 must be below episode_steps=9",
        ),
    ],
)
def test_bad_randomisation_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def how_deep_the_soles_sink(mass_scale, recompute):
    """Return by how many micrometres the soles sink in after 0.2 s of holding STAND."""
    env = MicroduckEnv(init_noise=0, n_pushes=0)
    env.reset()
    episode = env.record()
    episode.factors = Factors(None, mass_scale, None, recompute)
    env.reset(episode=episode)
    for _ in range(10):
        env.step(np.zeros(14))
    return round(-1e6 * env.data.contact.dist.min())


def test_what_recomputed_constants_change():
    """The figures that the README quotes: contacts as soft as the drawn mass makes them, or not."""
    assert [how_deep_the_soles_sink(scale, False) for scale in (0.85, 1.0, 1.15)] == [313, 348, 380]
    assert [how_deep_the_soles_sink(scale, True) for scale in (0.85, 1.0, 1.15)] == [348, 348, 349]
