"""Pictures of a simulation, with or without a screen.

`mujoco.Renderer` chooses its OpenGL when `mujoco` is imported, from the variable `MUJOCO_GL`, and
without a screen its default fails. By the time this module is read that choice is made, so it opens
an OpenGL context itself: the one the user asked for in `MUJOCO_GL`, else one that works here.

    pixels = render(model, data, 640, 480, camera="head_camera")
    save_png("duck.png", pixels)

For many pictures of one model keep the context open:

    with Canvas(model, 640, 480) as canvas:
        frames = [canvas.draw(data, camera) for data in datas]
"""

import ctypes
import importlib
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeAlias

import mujoco
import numpy as np
from numpy.typing import NDArray

from mujoco_vecenv.microduck.config import MicroduckConfig
from mujoco_vecenv.microduck.robot import Robot, scene_path

Camera: TypeAlias = str | mujoco.MjvCamera | None
"""A camera of the model by name, a free-standing one, or None for MuJoCo's default view."""

_HEADLESS: Final = (
    ("libEGL.so.1", "mujoco.egl"),
    ("libOSMesa.so.8", "mujoco.osmesa"),
    ("libOSMesa.so.6", "mujoco.osmesa"),
)


class NoOpenGLError(RuntimeError):
    """No OpenGL context can be opened on this machine."""


class Canvas:
    """An off-screen OpenGL context that draws one model; use it as a context manager.

    Args:
        model: the model to draw. Its `visual/global` `offwidth` and `offheight` bound the size.
        width: width of the pictures in pixels.
        height: height of the pictures in pixels.

    Raises:
        NoOpenGLError: this machine has no OpenGL to draw with.
        ValueError: the model's off-screen buffer is smaller than the picture.
    """

    def __init__(self, model: mujoco.MjModel, width: int, height: int) -> None:
        largest = model.vis.global_
        if width > largest.offwidth or height > largest.offheight:
            raise ValueError(
                f"a picture of {width} x {height} does not fit the model's off-screen buffer of "
                f"{largest.offwidth} x {largest.offheight}; raise offwidth and offheight of "
                "<visual><global> in its MJCF"
            )
        self._model = model
        self._size = (width, height)
        self._gl = _open_gl(width, height)
        self._gl.make_current()
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_150)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._scene = mujoco.MjvScene(model, maxgeom=10_000)
        self._option = mujoco.MjvOption()

    def draw(self, data: mujoco.MjData, camera: Camera = None) -> NDArray[np.uint8]:
        """Draw one picture.

        Args:
            data: the state; its body poses must be current (`mj_forward`).
            camera: the view.

        Returns:
            (height, width, 3) uint8, rows from the top, a new array.
        """
        width, height = self._size
        view = _view(self._model, camera)
        everything = mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(self._model, data, self._option, None, view, everything, self._scene)
        self._gl.make_current()
        rectangle = mujoco.MjrRect(0, 0, width, height)
        mujoco.mjr_render(rectangle, self._scene, self._context)
        pixels = np.empty((height, width, 3), np.uint8)
        mujoco.mjr_readPixels(pixels, None, rectangle, self._context)
        return np.flipud(pixels).copy()

    def close(self) -> None:
        """Release the OpenGL context. Drawing ends here."""
        self._context.free()
        self._gl.free()

    def __enter__(self) -> "Canvas":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def render(
    model: mujoco.MjModel,
    data: mujoco.MjData,
    width: int = 640,
    height: int = 480,
    camera: Camera = None,
) -> NDArray[np.uint8]:
    """Draw one picture of a simulation.

    Args:
        model: the model.
        data: its state; its body poses must be current (`mj_forward`).
        width: width of the picture in pixels.
        height: height of the picture in pixels.
        camera: the view.

    Returns:
        (height, width, 3) uint8, rows from the top.
    """
    with Canvas(model, width, height) as canvas:
        return canvas.draw(data, camera)


def portrait(config: MicroduckConfig) -> NDArray[np.uint8]:
    """Draw the robot in STAND, from the front and a little to its left.

    Returns:
        (600, 900, 3) uint8.
    """
    path = scene_path(config)
    robot = Robot(mujoco.MjModel.from_xml_path(str(path)), path)
    data = mujoco.MjData(robot.model)
    mujoco.mj_resetDataKeyframe(robot.model, data, robot.stand)
    mujoco.mj_forward(robot.model, data)
    camera = mujoco.MjvCamera()
    camera.lookat[:] = (0.0, 0.0, 0.13)
    camera.distance, camera.azimuth, camera.elevation = 0.44, 222, -10
    return render(robot.model, data, 900, 600, camera)


def save_png(path: str | Path, pixels: NDArray[np.uint8]) -> None:
    """Write a picture to a PNG file.

    Args:
        path: the file.
        pixels: (height, width, 3) uint8, as `render` returns.

    Raises:
        ImportError: Pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "writing a PNG needs Pillow: pip install 'mujoco-vecenv[render]'"
        ) from error
    Image.fromarray(pixels).save(path, format="PNG", optimize=True)


def _view(model: mujoco.MjModel, camera: Camera) -> mujoco.MjvCamera:
    if isinstance(camera, mujoco.MjvCamera):
        return camera
    view = mujoco.MjvCamera()
    if camera is None:
        mujoco.mjv_defaultFreeCamera(model, view)
        return view
    number = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, camera)
    if number < 0:
        names = [model.camera(i).name for i in range(model.ncam)]
        raise ValueError(f"the model has no camera {camera!r}; it has {names}")
    view.type = mujoco.mjtCamera.mjCAMERA_FIXED
    view.fixedcamid = number
    return view


def _open_gl(width: int, height: int) -> Any:
    """Open the OpenGL context of MUJOCO_GL, or one that works here if that is not set."""
    asked = os.environ.get("MUJOCO_GL")
    screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if asked or screen or sys.platform != "linux":
        opener = mujoco
    else:
        opener = importlib.import_module(_headless_backend())
    try:
        return opener.GLContext(width, height)
    except Exception as error:
        raise NoOpenGLError(
            f"OpenGL would not open here (MUJOCO_GL is {asked!r}): {error}. Without a screen, "
            "install the Debian package libosmesa6 and set MUJOCO_GL=osmesa"
        ) from error


def _headless_backend() -> str:
    """Name the module of an OpenGL that needs no screen, by the library that is installed."""
    for library, module in _HEADLESS:
        try:
            ctypes.CDLL(library)
        except OSError:
            continue
        return module
    raise NoOpenGLError(
        "there is no screen and no OpenGL library that does without one; install the Debian "
        "package libegl1 (with a graphics driver) or libosmesa6 (without)"
    )
