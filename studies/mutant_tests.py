"""Plugins of pytest for `studies.mutants`: one traces tests, one chooses among them, one stops at a failure.

`put_in_place` gives an imported module the code of a mutant.
"""

from __future__ import annotations

import gc
import inspect
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

from studies.mutation import Mutant

ROOT = Path(__file__).parents[1]
SLOW_S = 10.0
"""A test that takes more seconds of processor time is not near."""
FILE_S = 40.0
"""Once a file's tests have taken this, the rest of them are not near either."""

Lines = dict[str, list[int]]
"""Lines that a test executes, by module."""


class Judge:
    """A pytest plugin that ends the process at the first failure."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The last line says which test it was."""
        if report.failed:
            os.write(1, f"\n{report.nodeid}\n".encode())
            os._exit(1)

    def has_enough(self) -> bool:
        """Whoever has not failed may go on."""
        return False

    def finish(self) -> None:
        """Nobody failed."""


def put_in_place(mutant: Mutant, copy: Path) -> None:
    """Give the functions of an imported module the mutant's code.

    The functions are found among all objects, wherever a decorator has put them.
    """
    path = str(copy / Path(mutant.path).relative_to("src"))
    code, changed = _code_of(mutant, mutant.apply((ROOT / mutant.path).read_bytes()), path), 0
    for thing in gc.get_objects():
        if type(thing) is not FunctionType or thing.__code__.co_filename != path:
            continue
        if _place(thing.__code__) == _place(code):
            thing.__code__ = code
            changed += 1
    assert changed, f"{_place(code)} of {path} is nowhere"


def fits_in_place(mutant: Mutant) -> bool:
    """Whether a function can be given the mutant's code: not if it uses other variables of the scope around it."""
    source = (ROOT / mutant.path).read_bytes()
    before, after = (_code_of(mutant, text, mutant.path) for text in (source, mutant.apply(source)))
    return before.co_freevars == after.co_freevars


def _code_of(mutant: Mutant, source: bytes, path: str) -> CodeType:
    """The code of the function that a mutant is in."""
    codes = [one for one in _functions(compile(source, path, "exec")) if one.co_firstlineno <= mutant.line]
    return max(codes, key=lambda one: one.co_firstlineno)


def _place(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _functions(code: CodeType) -> Iterator[CodeType]:
    """The functions of a module and the methods of its classes, each with all that is inside it."""
    for one in code.co_consts:
        if isinstance(one, CodeType):
            if one.co_flags & inspect.CO_NEWLOCALS and one.co_flags & inspect.CO_OPTIMIZED:
                yield one
            else:
                yield from _functions(one)


class Tracer:
    """A pytest plugin that keeps the seconds and the lines of each test that passes.

    The lines of a fixture belong to every test that uses it, whoever set it up.
    """

    def __init__(self, kept: Path, copy: Path, modules: Iterable[str]) -> None:
        self.kept, self.copy = kept, copy
        self.files = {str(copy / Path(module).relative_to("src")): module for module in modules}
        self.current: set[tuple[str, int]] = set()
        self.of_fixture: dict[Any, set[tuple[str, int]]] = {}
        self.tests: dict[str, tuple[float, set[tuple[str, int]]]] = {}
        self.failed: set[str] = set()
        self.used: dict[str, list[Any]] = {}

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        """Called by Python for each call; for each line of the modules only."""
        module = self.files.get(frame.f_code.co_filename)
        if module is None:
            return None
        self.current.add((module, frame.f_lineno))
        return self.trace

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Trace one test with its set-up."""
        started, self.current = _cpu_s(), set()
        before = sys.gettrace()
        sys.settrace(self.trace)
        try:
            return (yield)
        finally:
            sys.settrace(before)
            name = test_name(item, self.copy)
            self.tests[name] = (_cpu_s() - started, self.current)
            fixtures = getattr(item, "_fixtureinfo", None)
            self.used[name] = (
                [one for all_of in fixtures.name2fixturedefs.values() for one in all_of] if fixtures else []
            )

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        """Trace one fixture."""
        outer, self.current = self.current, set()
        try:
            return (yield)
        finally:
            self.of_fixture[fixturedef] = self.of_fixture.get(fixturedef, set()) | self.current
            self.current |= outer

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """What fails or is skipped cannot kill."""
        if not report.passed:
            self.failed.add(report.nodeid)

    def has_enough(self) -> bool:
        """Whether a file has had its time."""
        return sum(seconds for seconds, _ in self.tests.values()) > FILE_S

    def finish(self) -> None:
        """Write down what was seen."""
        found: dict[str, tuple[float, Lines]] = {}
        for name, (seconds, lines) in self.tests.items():
            reached = lines.union(*(self.of_fixture.get(one, set()) for one in self.used[name]))
            if seconds <= SLOW_S and not any(name.endswith(bad) for bad in self.failed):
                by_module = defaultdict(list)
                for module, line in sorted(reached):
                    by_module[module].append(line)
                found[name] = round(seconds, 3), dict(by_module)
        self.kept.write_text(json.dumps(found))


class Selection:
    """A pytest plugin that runs the tests it is given, in their order."""

    def __init__(self, tests: Iterable[str], copy: Path) -> None:
        self.order, self.copy = {test: index for index, test in enumerate(tests)}, copy

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep what was chosen."""
        chosen = [item for item in items if test_name(item, self.copy) in self.order]
        items[:] = sorted(chosen, key=lambda item: self.order[test_name(item, self.copy)])


def test_name(item: pytest.Item, copy: Path) -> str:
    """A test's name, whichever copy of the package it is a doctest of."""
    path = item.path.relative_to(copy if item.path.is_relative_to(copy) else ROOT)
    return f"{path}::{item.nodeid.partition('::')[2]}"


def _cpu_s() -> float:
    """Processor time of this process and of those it waited for."""
    return sum(os.times()[:4])
