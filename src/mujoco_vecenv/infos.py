"""What a step tells about each environment."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

Info = dict[str, Any]


class LazyInfos(Sequence[Info]):
    """The infos of one step: a list of dictionaries, each made when it is first looked at.

    Most steps' infos are never looked at.

    Args:
        n: how many.
        make: makes the one of environment i.
    """

    def __init__(self, n: int, make: Callable[[int], Info]):
        self._n = n
        self._make = make
        self._made: dict[int, Info] = {}

    def __len__(self) -> int:
        return self._n

    @overload
    def __getitem__(self, index: int) -> Info: ...
    @overload
    def __getitem__(self, index: slice) -> list[Info]: ...
    def __getitem__(self, index: int | slice) -> Info | list[Info]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = range(len(self))[index]  # negative indices, and IndexError
        if i not in self._made:
            self._made[i] = self._make(i)
        return self._made[i]

    def __iter__(self) -> Iterator[Info]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return repr(list(self))
