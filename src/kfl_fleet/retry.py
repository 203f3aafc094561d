"""One policy for everything that is tried again: pauses that grow, differ between devices, and end."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True)
class Retry:
    """Pauses between attempts.

    >>> list(Retry(1.0, factor=2.0, most_s=5.0).lengths(4))
    [1.0, 2.0, 4.0, 5.0]
    """

    first_s: float
    factor: float = 1.0
    """Each pause is so many times the one before it, without jitter."""
    most_s: float = inf
    jitter: float = 0.0
    """Part by which a pause may be longer or shorter, so that devices do not all come at the same moment."""

    def lengths(self, count: int | None = None) -> Iterator[float]:
        """Yield the lengths of the pauses without jitter: `count` of them, or without end."""
        length_s, done = min(self.first_s, self.most_s), 0
        while count is None or done < count:
            yield length_s
            length_s, done = min(length_s * self.factor, self.most_s), done + 1

    def pauses(
        self,
        until: float = inf,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Iterator[int]:
        """Yield the number of each attempt, from 0, and sleep between two of them; end at the time `until`.

        The first attempt is always made. A pause that would end after `until` is cut there, and one more attempt made.

        >>> moments, slept = iter((0.0, 2.0, 3.0)), []
        >>> list(Retry(2.0).pauses(3.0, clock=lambda: next(moments), sleep=slept.append)), slept
        ([0, 1, 2], [2.0, 1.0])
        """
        for attempt, length_s in enumerate(self.lengths()):
            yield attempt
            left_s = until - clock()
            if left_s <= 0:
                return
            sleep(min(length_s * random.uniform(1 - self.jitter, 1 + self.jitter), left_s))


__all__ = ["Retry"]
