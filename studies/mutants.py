"""Do the tests notice? Change one thing in a core module, run the tests nearest to it, and see whether one fails.

    python -m studies.mutants --seed 1 --count 100                      # a hundred mutants of each group
    python -m studies.mutants --seed 1 --count 100 --groups algorithms
    python -m studies.mutants --every --groups round                    # not a sample: every mutant of a group
    python -m studies.mutants --every --groups round --only round.py:117 stem.py     # of a line, of a module
    python -m studies.mutants --seed 1 --count 100 --again              # those that were alive, after new tests
    python -m studies.mutants --table docs/results/mutants.txt          # the table of all that was played

Mutants are drawn at random from a seed, by the operators of `studies.mutation`, and applied to a copy of the package;
the working tree is never touched. `NEAREST` says which test files stand nearest to a group of modules. These are run
once with a tracer that keeps the lines each test executes. A mutant then meets the tests that execute its lines, the
quickest first, up to `--budget` seconds of measured test time. The first failure, a crash or a time-out kills it; a
mutant that no test reaches survives.

Survivors that no test can kill, because the program does the same, are listed with the reason in
`studies/equivalent_mutants`, by module, function and text, so that the list outlives line numbers.

Why not mutmut or cosmic-ray: both are made to play every mutant of a whole project and start the tests afresh for each,
where importing PyTorch and kfl and collecting tests would be nearly all of the time. Here one process does that once
and is forked for each mutant, which gets its changed function by exchanging the function's code. Only what is executed
by an import, a constant or a default, needs an import of its own. Time is processor time, so that a busy machine
changes no verdict. What was played is kept in `.cache/mutants` as it comes, as are the lines of each test, which are
measured again for a test file or module that changes.
"""

from __future__ import annotations

import argparse
import compileall
import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest

from studies.mutant_results import Result, Sample, is_alive, key_of, summary, table
from studies.mutant_tests import ROOT, Judge, Lines, Selection, Tracer, fits_in_place, put_in_place, test_name
from studies.mutation import Mutant, mutants

GROUPS = {
    "algorithms": ["src/kfl/algorithms/*.py"],
    "scheduling": ["src/kfl/scheduling/*.py"],
    "wireless": ["src/kfl/wireless/*.py"],
    "round": ["src/kfl/simulation/round.py"],
    "checkpoint": ["src/kfl/runfolder/_checkpoint.py"],
    "validation": ["src/kfl/deploy/validation.py"],
}
"""Modules by group."""
NEAREST = {
    "algorithms": ["tests/algorithms/*.py"],
    "scheduling": ["tests/scheduling/*.py", "tests/fuzz/test_problems.py", "tests/cli/test_schedule.py"],
    "wireless": ["tests/wireless/*.py"],
    "round": [
        f"tests/simulation/test_{name}.py"
        for name in ("round", "run", "faults", "batteries", "sent_bits", "recompute", "traces", "trail")
    ]
    + ["tests/deploy/test_loop.py", "tests/deploy/test_secure_fleet.py"],
    "checkpoint": ["tests/runfolder/*.py", "tests/simulation/test_resume.py", "tests/fuzz/test_run_folders.py"],
    "validation": [f"tests/deploy/test_{name}.py" for name in ("validation", "parts", "liars", "loop", "protocol")]
    + ["tests/fuzz/test_uploads.py"],
}
"""Test files nearest to a group; the doctests of its modules come on top."""
PATIENCE_S = 30.0
"""A mutant's tests may take this and five times what they take without it."""
MEMORY_BYTES = 16 << 30
BROKEN = 99
"""Exit code of a child that could not do its work."""


def main() -> int:
    """Draw, play and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="which sample (default 0)")
    parser.add_argument("--count", type=int, default=10, help="mutants of each group (default 10)")
    parser.add_argument("--every", action="store_true", help="every mutant instead of a sample")
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS), help="groups (default all)")
    parser.add_argument("--only", nargs="+", help="of these, the modules or lines named: stem.py, round.py:117")
    parser.add_argument(
        "--again", action="store_true", help="of these, the ones not played yet, or alive (also before)"
    )
    parser.add_argument("--bodies", action="store_true", help="of these, what is executed by calls, not by imports")
    parser.add_argument("--near", nargs="+", help="test files in place of the nearest ones")
    parser.add_argument("--label", default="after", help="column of the table: before, after (default after)")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of tests for each mutant (default 20)")
    parser.add_argument("--work", type=Path, default=ROOT / ".cache" / "mutants", help="folder for copies and results")
    parser.add_argument("--table", type=Path, help="only write the table of what is kept in the work folder")
    options = parser.parse_args()
    if options.table:
        options.table.write_text(table(options.work, {group: _expand(patterns) for group, patterns in GROUPS.items()}))
        return 0
    import_once()
    sample = Sample(options.work, options.label, "every" if options.every else str(options.seed))
    for group in options.groups:
        study = Study(group, options.work, options.budget, options.near or _expand(NEAREST[group]), sample)
        drawn = study.every() if options.every else study.draw(options.seed, options.count)
        drawn = [
            mutant for mutant in drawn if _is_named(mutant, options.only) and (mutant.in_body or not options.bodies)
        ]
        wanted = [mutant for mutant in drawn if not options.again or study.is_open(mutant)]
        try:
            study.play(wanted)
        finally:
            study.remove()
        print(summary(group, [sample.read(mutant.path)[key_of(mutant)] for mutant in drawn]), flush=True)
    return 0


def _is_named(mutant: Mutant, names: list[str] | None) -> bool:
    file = Path(mutant.path).name
    return names is None or file in names or f"{file}:{mutant.line}" in names


def import_once() -> None:
    """Import what is slow and not ours, so that children have it."""
    import hypothesis
    import numpy
    import safetensors.torch
    import scipy.optimize
    import scipy.special
    import torch

    del hypothesis, numpy, safetensors, scipy
    torch.set_num_threads(1)
    assert "kfl" not in sys.modules, "the children must import kfl from the copy"


class Study:
    """The mutants of one group of modules."""

    def __init__(self, group: str, work: Path, budget_s: float, near: Iterable[str], sample: Sample) -> None:
        self.group, self.work, self.budget_s, self.sample = group, work, budget_s, sample
        self.own = work / f"{group}-{os.getpid()}"
        """What belongs to this process alone; others may play beside it."""
        self.copy = self.own / "src"
        compileall.compile_dir(ROOT / "src", quiet=2)  # the copy's files have the same times, so this holds for them
        shutil.copytree(ROOT / "src", self.copy)
        (work / "lines").mkdir(parents=True, exist_ok=True)
        self.modules = _expand(GROUPS[group])
        self.maps = {name: self.map_path(name) for name in [*near, *self.modules]}
        """Test files, and where their lines are kept."""
        self.near: dict[str, dict[str, tuple[float, Lines]]] = {}

    def remove(self) -> None:
        """Remove what only this process needed."""
        shutil.rmtree(self.own, ignore_errors=True)

    def every(self) -> list[Mutant]:
        """Every mutant."""
        return [mutant for module in self.modules for mutant in mutants(module, (ROOT / module).read_bytes())]

    def draw(self, seed: int, count: int) -> list[Mutant]:
        """Mutants at random: each place that can be changed is as likely as any other."""
        places: dict[tuple[str, int, int], list[Mutant]] = defaultdict(list)
        for mutant in self.every():
            places[mutant.path, mutant.start, mutant.end].append(mutant)
        chance = random.Random(f"{seed}/{self.group}")
        chosen = chance.sample(sorted(places), min(count, len(places)))
        return [chance.choice(places[place]) for place in chosen]

    def is_open(self, mutant: Mutant) -> bool:
        """Whether a mutant has not been played, or was alive.

        What the tests killed before, they kill after more tests were written; it is taken over.
        """
        result = self.sample.read(mutant.path).get(key_of(mutant))
        if result is None and (result := self.sample.before().read(mutant.path).get(key_of(mutant))):
            self.sample.keep(mutant, result)
        return result is None or is_alive(result)

    def map_path(self, name: str) -> Path:
        """Where the lines of a test file are kept: elsewhere when it or a module changes."""
        digest = hashlib.blake2b(digest_size=8)
        for path in [ROOT / name, *map(ROOT.joinpath, self.modules), *(ROOT / name).parent.glob("conftest.py")]:
            digest.update(path.read_bytes())
        return self.work / "lines" / f"{self.group}-{name.replace('/', '.')}-{digest.hexdigest()}.json"

    def play(self, drawn: list[Mutant]) -> None:
        """Play each mutant, and keep what became of it."""
        inside = [mutant for mutant in drawn if mutant.in_body and fits_in_place(mutant)]
        done = self.own / "done"
        # One process collects the tests and is forked for each mutant of a function; it also measures the lines.
        code, output = self.child(lambda: self.pytest(list(self.maps), [Server(self, inside, done)]), 36000, 36000)
        if not done.exists():
            raise SystemExit(f"The tests cannot be run ({code}):\n{output[-2000:]}")
        self.near = {name: json.loads(path.read_text()) for name, path in self.maps.items()}
        # What an import executes needs an import of its own, as does a function of other outer variables.
        for mutant in drawn:
            if mutant not in inside:
                self.sample.keep(mutant, self.play_by_import(mutant))

    def play_by_import(self, mutant: Mutant) -> Result:
        """Whether the tests that use a module notice a mutant that is executed when it is imported."""
        source, tests, code, output = (ROOT / mutant.path).read_bytes(), self.tests_of(mutant), 0, ""
        files = [name for name, all_tests in self.near.items() if tests.keys() & all_tests.keys()]
        if tests:
            target = self.copy / Path(mutant.path).relative_to("src")
            target.write_bytes(mutant.apply(source))
            select = Selection(tests, self.copy)
            found, output = self.child(lambda: self.pytest(files, [select], "-x"), *self.limits_s(tests))
            code = -1 if found is None else found
            target.write_bytes(source)
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
        return self.result(mutant, tests, code, failed.group(1) if failed else "")

    def limits_s(self, tests: dict[str, float]) -> tuple[float, float]:
        """Seconds of processor and of wall clock that tests may take; other programs may hold the processor."""
        cpu_s = PATIENCE_S + 5 * sum(tests.values())
        return cpu_s, 30 * cpu_s

    def result(self, mutant: Mutant, tests: dict[str, float], code: int, killer: str) -> Result:
        """What became of a mutant, as plain values; said as it comes."""
        verdict = "not reached" if not tests else {0: "survived", 1: "killed"}.get(code, f"killed ({code})")
        before, after = mutant.diff((ROOT / mutant.path).read_bytes())
        print(f"{verdict:12} {mutant.path}:{mutant.line}  {after[:110]}", file=sys.__stderr__, flush=True)
        return {
            "module": mutant.path.removeprefix("src/kfl/"),
            "function": mutant.function,
            "line": mutant.line,
            "operator": mutant.operator,
            "before": before,
            "after": after,
            "verdict": verdict,
            "killer": killer,
            "tests": len(tests),
        }

    def tests_of(self, mutant: Mutant) -> dict[str, float]:
        """The tests that execute a mutant's lines, the quickest first, until the budget is spent.

        What is executed by an import alone, a constant or a default, is met first by whatever executes the function or
        file around it, then by all others: a test may read a constant and execute nothing of its module.
        """
        first, last = mutant.lines if mutant.in_body else mutant.scope
        reach = []
        for tests in self.near.values():
            for test, (seconds, lines) in tests.items():
                executes = any(first <= line <= last for line in lines.get(mutant.path, ()))
                if executes or not mutant.in_body:
                    reach.append((not executes, seconds, test))
        chosen: dict[str, float] = {}
        for _, seconds, test in sorted(reach):
            if not chosen or sum(chosen.values()) + seconds <= self.budget_s:
                chosen[test] = seconds
        return chosen

    def pytest(self, files: list[str], plugins: list[object], *more: str) -> int:
        """Run tests of these files against the copy; for a child."""
        from hypothesis import Phase, settings

        # A failure is enough; its smallest example, and examples of earlier mutants, are not wanted.
        settings.register_profile("mutants", phases=(Phase.explicit, Phase.generate), database=None)
        settings.load_profile("mutants")
        sys.dont_write_bytecode = True
        os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": f"{self.copy}{os.pathsep}{ROOT}"}
        sys.path.insert(0, str(self.copy))
        # Doctests are those of the copy: a module's own file would be the one without the mutant.
        paths = [str(self.copy / Path(name).relative_to("src")) if name.startswith("src") else name for name in files]
        options = f"--rootdir={ROOT} -c {ROOT}/pyproject.toml -q -p no:cacheprovider -n 0 --hypothesis-seed=0 --tb=line"
        options += f" -W ignore::pytest.PytestAssertRewriteWarning --basetemp={self.own}/tmp"
        return int(pytest.main([*options.split(), *more, *paths], plugins))

    def child(self, work: Callable[[], int], cpu_s: float, wall_s: float) -> tuple[int | None, str]:
        """Do something in a forked process: its exit code, None if it took too long, and what it printed."""
        output = self.own / f"output-{os.getpid()}.txt"
        sys.stdout.flush()
        process = os.fork()
        if process == 0:
            code = BROKEN
            try:
                os.setsid()
                resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
                resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s), int(cpu_s) + 1))
                descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(descriptor, 1)
                os.chdir(ROOT)
                code = work()
            except BaseException:
                traceback.print_exc(file=sys.stdout)
            finally:
                sys.stdout.flush()
                os._exit(code)
        ends = time.monotonic() + wall_s
        while True:
            done, status = os.waitpid(process, os.WNOHANG)
            if done:
                code, text = os.waitstatus_to_exitcode(status), output.read_text(errors="replace")
                if code == BROKEN:
                    raise RuntimeError(f"This program is broken, not a mutant:\n{text[-2000:]}")
                return code, text
            if time.monotonic() > ends:
                os.killpg(process, signal.SIGKILL)
                os.waitpid(process, 0)
                return None, output.read_text(errors="replace")
            time.sleep(0.02)


class Server:
    """A pytest plugin that collects the tests once, and plays every mutant in a process forked from there."""

    def __init__(self, study: Study, drawn: list[Mutant], done: Path) -> None:
        self.study, self.drawn, self.done = study, drawn, done
        self.items: dict[str, pytest.Item] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of running the tests: measure those that nobody has measured, then play."""
        if session.testsfailed:
            raise session.Interrupted("a test file cannot be collected")
        study = self.study
        self.items = {test_name(item, study.copy): item for item in session.items}
        for name, path in study.maps.items():
            if not path.exists():
                of_file = [test for test in self.items if test.startswith(f"{name.removeprefix('src/')}::")]
                tracer = Tracer(path, study.copy, study.modules)
                study.child(partial(self.run, of_file, tracer), 3600, 36000)
                print(f"{len(of_file)} tests of {name} measured", file=sys.__stderr__, flush=True)
            study.near[name] = json.loads(path.read_text())
        for mutant in self.drawn:
            study.sample.keep(mutant, self.play(mutant))
        self.done.touch()
        return True

    def play(self, mutant: Mutant) -> Result:
        """Fork, put the mutant in place, and run its tests."""
        tests = self.study.tests_of(mutant)

        def work() -> int:
            put_in_place(mutant, self.study.copy)
            return self.run(tests, Judge())

        code, output = self.study.child(work, *self.study.limits_s(tests)) if tests else (0, "")
        return self.study.result(mutant, tests, -1 if code is None else code, output.strip().rpartition("\n")[2])

    def run(self, tests: Iterable[str], plugin: Tracer | Judge) -> int:
        """Run tests under the eyes of a plugin: 0, unless that ends the process."""
        items = [self.items[test] for test in tests if test in self.items]
        for item, following in zip(items, [*items[1:], None], strict=False):
            if not item.config.pluginmanager.is_registered(plugin):
                item.config.pluginmanager.register(plugin)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if plugin.has_enough():
                break
        plugin.finish()
        return 0


def _expand(patterns: Iterable[str]) -> list[str]:
    found = (path for pattern in patterns for path in sorted(ROOT.glob(pattern)))
    return [str(path.relative_to(ROOT)) for path in found if path.name not in ("__init__.py", "conftest.py")]


if __name__ == "__main__":
    sys.exit(main())
