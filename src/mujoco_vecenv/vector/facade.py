"""What every vector environment does alike: it opens, closes, fails and survives a fork."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import (
    Any,
    ClassVar,
    Final,
    Generic,
    NoReturn,
    Protocol,
    Self,
    TypeVar,
    runtime_checkable,
)
from weakref import WeakSet

from mujoco_vecenv.engine.actions import ActionError


class Closable(Protocol):
    """What can be closed."""

    def close(self) -> object:
        """Release what the garbage collector does not."""


@runtime_checkable
class Abandonable(Protocol):
    """What a forked process must leave to the process it belongs to."""

    def abandon(self) -> None:
        """Leave it alone."""


Envs = TypeVar("Envs", bound=Closable)


class Facade(Generic[Envs]):
    """The front of environments that run somewhere else.

    Args:
        envs: the environments.
    """

    n: int
    _instead: ClassVar[str] = "; get_state() is what it holds, as plain arrays"

    def __init__(self, envs: Envs):
        self._envs: Envs | None = envs
        self._why_closed = ""
        _LIVE.add(self)

    def close(self) -> None:
        """End the environments. Closing twice is fine."""
        envs, self._envs = self._envs, None
        if envs is not None:
            envs.close()

    @contextmanager
    def _closing_on_failure(self) -> Iterator[None]:
        try:
            yield
        except ActionError:  # nothing has moved
            raise
        except BaseException as error:
            self._fail(error)
            raise

    def _fail(self, error: BaseException) -> None:
        """Close: some environments may have moved and others not, and no state is left."""
        self.close()
        self._why_closed = f", because a call failed ({type(error).__name__})"

    def _forked(self) -> None:
        """Give up in a forked process: it has none of the threads, and shares the pipes."""
        if self._envs is not None:
            if isinstance(self._envs, Abandonable):
                self._envs.abandon()
            self._envs = None
            self._why_closed = " in this process, which was forked from the one it belongs to"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be pickled or copied{self._instead}")

    def _open(self) -> Envs:
        if self._envs is None:
            raise RuntimeError(
                f"this {type(self).__name__} is closed{self._why_closed}: make a new one to go on"
            )
        return self._envs

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.n


_LIVE: Final[WeakSet[Facade[Any]]] = WeakSet()


def _after_fork() -> None:
    for envs in _LIVE:
        envs._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
