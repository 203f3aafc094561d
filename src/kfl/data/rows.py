"""The samples of every device, found out when they are asked for rather than kept."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import overload

from kfl.data.checks import IntArray


class LazyRows(Sequence[IntArray]):
    """Sample indices of every device, as a tuple of arrays would hold them; a subclass says how to get one.

    >>> import numpy as np
    >>> class Squares(LazyRows):
    ...     def __len__(self):
    ...         return 3
    ...
    ...     def read(self, device):
    ...         return np.array([device, device**2])
    >>> rows = Squares()
    >>> rows[-1].tolist(), len(rows[1:])
    ([2, 4], 2)
    """

    @abstractmethod
    def read(self, device: int) -> IntArray:
        """The samples of one device, numbered from 0."""

    @overload
    def __getitem__(self, place: int) -> IntArray: ...
    @overload
    def __getitem__(self, place: slice) -> list[IntArray]: ...
    def __getitem__(self, place: int | slice) -> IntArray | list[IntArray]:
        places = range(len(self))[place]
        return [self.read(one) for one in places] if isinstance(places, range) else self.read(places)
