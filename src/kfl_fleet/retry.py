"""One clock for everything that waits, and one policy for what is tried again: pauses that grow, differ, and end."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True)
class Clock:
    """Time that passes: the machine's, or in tests one that does not make them wait."""

    now: Callable[[], float] = time.monotonic
    """Seconds since some moment."""
    sleep: Callable[[float], None] = time.sleep


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
        clock: Clock = Clock(),  # noqa: B008  # frozen
    ) -> Iterator[int]:
        """Yield the number of each attempt, from 0, and sleep between two of them; end at the time `until`.

        The first attempt is always made. A pause that would end after `until` is cut there, and one more attempt made.

        >>> moments, slept = iter((0.0, 2.0, 3.0)), []
        >>> list(Retry(2.0).pauses(3.0, Clock(lambda: next(moments), slept.append))), slept
        ([0, 1, 2], [2.0, 1.0])
        """
        for attempt, length_s in enumerate(self.lengths()):
            yield attempt
            left_s = until - clock.now()
            if left_s <= 0:
                return
            clock.sleep(min(length_s * random.uniform(1 - self.jitter, 1 + self.jitter), left_s))


__all__ = ["Clock", "Retry"]
