"""Write the four other variants of the Microduck from `scene.xml`.

    python -m mujoco_vecenv.microduck.models.derive

Whatever the variants share stands in `scene.xml` alone; this file holds what only they have.
The derived files are committed, so that a model can be read and loaded without running anything;
a test holds them against this derivation.
"""

import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

Attributes = dict[str, str]

SOURCE = Path(__file__).with_name("scene.xml")

BACKLASH_JOINT: Attributes = {
    "range": "-0.017453292519943295 0.017453292519943295",
    "damping": "0.01",
    "armature": "0.001",
    "frictionloss": "0.0",
    "solreflimit": "0.01 1",
    "solimplimit": "0.95 0.999 0.0001 0.5 2",
}

WHEEL_JOINT: Attributes = {"damping": "0.0", "frictionloss": "0.0", "armature": "0.0001"}

WHEEL_INERTIAL: Attributes = {
    "mass": "0.00447401",
    "pos": "0 0 0",
    "fullinertia": "2.8556e-07 2.8556e-07 5.3687e-07 0 -6e-12 0",
}

# An ellipsoid of the published radius touches the floor in one point and looks the same however far
# it has turned. It is as wide as a disc with the published inertia.
WHEEL_GEOM: Attributes = {
    "type": "ellipsoid",
    "size": "0.015 0.015 0.004",
    "group": "2",
    "material": "dark",
    "contype": "1",
    "conaffinity": "1",
}

# By the published figures the axles lie 5.7 mm under z = 0 in STAND, so the wheels reach down to
# -20.7 mm. The trunk height of STAND is published too, so it is the floor that makes room.
ROLLER_FLOOR = "0 0 -0.0207"

ROLLER_ANKLES: dict[str, Attributes] = {
    "ankle_left": {
        "mass": "0.02087",
        "pos": "-0.00680626 -0.0143677 -0.0151851",
        "fullinertia": "4.85529e-06 9.6767e-06 8.22681e-06 -3.18897e-07 5.6657e-08 1.31522e-07",
    },
    "ankle_right": {
        "mass": "0.0208701",
        "pos": "0.00680653 -0.0143679 -0.0149822",
        "fullinertia": "4.8595e-06 9.68066e-06 8.22663e-06 3.18865e-07 -6.7107e-08 1.66791e-07",
    },
}

ROLLER_ANKLE_QUAT = {"ankle_left": "0 1 0 0"}

ROLLER_FEET = {"left_foot": "0 -0.0475 -0.0147", "right_foot": "0 -0.0475 -0.0144819"}

# Body, parent, position, quaternion, joint.
WHEELS = (
    ("tire", "ankle_left", "-0.0395 -0.0325 -0.0147", "1 0 0 0", "passive_LF_wheel"),
    ("tire_2", "ankle_left", "0.0255 -0.0325 -0.0147", "1 0 0 0", "passive_LR_wheel"),
    ("tire_3", "ankle_right", "0.0395 -0.0325 -0.0144819", "0 0 1 0", "passive_RF_wheel"),
    ("tire_4", "ankle_right", "-0.0255 -0.0325 -0.0144819", "0 0 1 0", "passive_RR_wheel"),
)


def only_soles_touch(model: ET.Element) -> None:
    """Variant `walk`: soles on the floor, shins and trunk on each other, the rest on nothing."""
    for part, group in (("shin", "2"), ("shell", "0")):
        geom = _find(model, f".//default[@class='{part}']/geom")
        geom.set("contype", group)
        geom.set("conaffinity", group)


def add_backlash(model: ET.Element) -> None:
    """Put a little free play in series with every servo: a passive joint on the same body."""
    _add_class(model, "backlash", joint=BACKLASH_JOINT)
    for body in model.iter("body"):
        servo = body.find("joint")
        if servo is not None:
            name = f"passive_{servo.get('name')}_backlash"
            play = ET.Element("joint", {"name": name, "class": "backlash"})
            body.insert(list(body).index(servo) + 1, play)
    _extend_keyframes(model)


def put_on_wheels(model: ET.Element) -> None:
    """Variant `rollers`: four passive wheels instead of the soles."""
    _find(model, ".//geom[@name='floor']").set("pos", ROLLER_FLOOR)
    _add_class(model, "wheel", joint=WHEEL_JOINT, geom=WHEEL_GEOM)
    for name, inertial in ROLLER_ANKLES.items():
        ankle = _body(model, name)
        _find(ankle, "inertial").attrib.update(inertial)
        ankle.remove(_find(ankle, "geom[@class='sole']"))
    for name, quat in ROLLER_ANKLE_QUAT.items():
        _body(model, name).set("quat", quat)
    for name, pos in ROLLER_FEET.items():
        _find(model, f".//site[@name='{name}']").set("pos", pos)
    for name, parent, pos, quat, joint in WHEELS:
        tire = ET.SubElement(_body(model, parent), "body", {"name": name, "pos": pos, "quat": quat})
        ET.SubElement(tire, "inertial", WHEEL_INERTIAL)
        ET.SubElement(tire, "joint", {"name": joint, "class": "wheel"})
        ET.SubElement(tire, "geom", {"name": f"{name}_wheel", "class": "wheel"})
    _extend_keyframes(model)


VARIANTS: dict[str, tuple[Callable[[ET.Element], None], ...]] = {
    "scene_walk.xml": (only_soles_touch,),
    "scene_backlash.xml": (add_backlash,),
    "scene_walk_backlash.xml": (only_soles_touch, add_backlash),
    "scene_rollers.xml": (put_on_wheels,),
}


def derive(source: str) -> dict[str, str]:
    """Derive every variant.

    Args:
        source: The text of `scene.xml`.

    Returns:
        The text of each derived file, by file name.
    """
    texts = {}
    for filename, changes in VARIANTS.items():
        model = ET.fromstring(source, ET.XMLParser(target=ET.TreeBuilder(insert_comments=True)))
        for change in changes:
            change(model)
        texts[filename] = _header(changes) + _to_text(model)
    return texts


def write() -> None:
    """Write the derived files beside `scene.xml`."""
    for filename, text in derive(SOURCE.read_text(encoding="utf-8")).items():
        SOURCE.with_name(filename).write_text(text, encoding="utf-8")


def _find(parent: ET.Element, path: str) -> ET.Element:
    element = parent.find(path)
    if element is None:
        raise ValueError(f"scene.xml has no {path} in <{parent.tag}>")
    return element


def _body(model: ET.Element, name: str) -> ET.Element:
    return _find(model, f".//body[@name='{name}']")


def _add_class(model: ET.Element, name: str, **elements: Attributes) -> None:
    """Add a default class for what only the variant has."""
    added = ET.SubElement(_find(model, "./default"), "default", {"class": name})
    for tag, attributes in elements.items():
        ET.SubElement(added, tag, attributes)


def _extend_keyframes(model: ET.Element) -> None:
    """Give every passive joint its 0 in the keyframes, at the place the kinematic tree gives it."""
    joints = [joint.get("name", "") for joint in _find(model, "worldbody").iter("joint")]
    for key in model.iter("key"):
        qpos = key.get("qpos", "").split()
        angles = iter(qpos[7:])
        added = ["0" if joint.startswith("passive_") else next(angles) for joint in joints]
        key.set("qpos", " ".join(qpos[:7] + added))


def _header(changes: tuple[Callable[[ET.Element], None], ...]) -> str:
    steps = ", then ".join(change.__name__ for change in changes)
    return f"<!-- Derived from scene.xml by derive.py ({steps}). Edit those, not this. -->\n"


def _to_text(model: ET.Element) -> str:
    ET.indent(model)
    for section in list(model)[:-1]:
        if isinstance(section.tag, str):  # a comment's tag is a function
            section.tail = "\n\n  "
    return ET.tostring(model, encoding="unicode") + "\n"


if __name__ == "__main__":
    write()
