"""How many files one `kfl run` passes through, and how often it moves from one file to another.

    python -m studies.path_of_a_run            # the two numbers
    python -m studies.path_of_a_run --files    # also the files, in the order of their first visit
    python -m studies.path_of_a_run --pairs    # also the functions most often entered from another file

A change of file is a Python call or return that enters another file of the package than the one before. Only functions
count, not the bodies of modules and classes that run when they are imported. Many changes in a short run mean that a
reader has to hold many small modules in mind to follow one path.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import kfl

PACKAGE = Path(kfl.__file__).parent
RUN = ("--devices", "4", "--rounds", "2")


class FileTrace:
    """A profile function that follows a program from file to file of the package."""

    def __init__(self) -> None:
        self.visits: dict[str, int] = {}
        """How often each file was entered, in the order of the first visit."""
        self.calls: Counter[tuple[str, str, str]] = Counter()
        """How often each function was called from another file: (calling file, called file, function)."""
        self._file = ""

    @property
    def changes(self) -> int:
        """How often a file was entered from another one."""
        return sum(self.visits.values())

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Take one event of `sys.setprofile`."""
        entered = {"call": frame, "return": frame.f_back}.get(event)
        if entered is None or not entered.f_code.co_flags & inspect.CO_OPTIMIZED:  # the body of a module or class
            return
        file = entered.f_code.co_filename
        if file != self._file and file.startswith(str(PACKAGE)):
            if event == "call":
                self.calls[self._file, file, frame.f_code.co_qualname] += 1
            self._file = file
            self.visits[file] = self.visits.get(file, 0) + 1


def trace_run() -> FileTrace:
    """Follow one small run from the parsed command line to the printed summary."""
    from kfl.cli.run import main

    trace = FileTrace()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        sys.setprofile(trace)
        try:
            main([*RUN, "--out", f"{folder}/run"])
        finally:
            sys.setprofile(None)
    return trace


def main() -> None:
    """Print how many files and changes of file there are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", action="store_true", help="list the files in the order of their first visit")
    parser.add_argument("--pairs", action="store_true", help="list the functions most often called from another file")
    options = parser.parse_args()
    trace = trace_run()
    print(f"{len(trace.visits)} files, {trace.changes:,} changes of file in kfl run {' '.join(RUN)}")
    for file, count in trace.visits.items() if options.files else ():
        print(f"{count:6,}  {_short(file)}")
    for (caller, called, function), count in trace.calls.most_common(100) if options.pairs else ():
        print(f"{count:6,}  {_short(caller)} -> {_short(called)} {function}")


def _short(file: str) -> str:
    return file.removeprefix(f"{PACKAGE}/")


if __name__ == "__main__":
    main()
