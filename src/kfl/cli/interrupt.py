"""Ctrl-C during a long job: the first ends it after the round in progress, the second at once."""

from __future__ import annotations

import signal
import sys
from types import FrameType, TracebackType


class GentleStop:
    """While the block runs, Ctrl-C (or a termination request) sets a flag; a second one interrupts as usual."""

    def __init__(self) -> None:
        self._asked = False
        self._before: dict[int, object] = {}

    def __call__(self) -> bool:
        """Whether the user asked to stop."""
        return self._asked

    def __enter__(self) -> GentleStop:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._before[number] = signal.signal(number, self._on_signal)
            except ValueError:  # not in the main thread, as in some notebooks: Ctrl-C then works as usual
                break
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal() returned is what it takes

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
        print("\nStopping after this round; press Ctrl-C again to stop at once.", file=sys.stderr, flush=True)
