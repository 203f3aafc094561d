"""One way to stop a program of a fleet: the first signal asks it to end, the second one ends it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequested(BaseException):  # no error: a person or the system asked for it
    """The program was asked to end.

    It derives from BaseException: `logging` and other libraries swallow an Exception that a signal raises in them.
    """


@contextmanager
def stopping_on_signals() -> Iterator[None]:
    """Raise StopRequested in the block at the first signal; a second one has its default action.

    What the program needs to clean up may hang, so the second signal must end it.
    """
    before = {number: signal.signal(number, _request) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _request(_number: int, _frame: FrameType | None) -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    raise StopRequested


__all__ = ["SIGNALS", "StopRequested", "stopping_on_signals"]
