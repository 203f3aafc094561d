"""Do the tests notice? Change one thing in a core module, run the tests nearest to it, and see whether one fails.

    python -m studies.mutants --seed 0 --count 10                       # ten mutants of each group
    python -m studies.mutants --seed 0 --count 10 --modules algorithms
    python -m studies.mutants --seed 0 --modules round --line 117       # every mutant of one line
    python -m studies.mutants --table docs/results/mutants.txt          # the table of all samples played so far

Mutants are drawn at random from a seed, by the operators of `studies.mutation`, and applied to a copy of the package;
the working tree is never touched. `NEAREST` says which test files stand nearest to a group of modules. These are run
once with a tracer that keeps the lines each test executes. A mutant then meets the tests that execute its lines, the
quickest first, up to `--budget` seconds of measured test time. The first failure, a crash or a time-out kills it; a
mutant that no test reaches survives.

Survivors that no test can kill, because the program does the same, are listed with the reason in
`studies/equivalent_mutants.toml`, by module, function and text, so that the list outlives line numbers.

Why not mutmut or cosmic-ray: both are made to play every mutant of a whole project and start the tests afresh for each,
where importing PyTorch and kfl and collecting tests would be nearly all of the time. Here one process does that once
and is forked for each mutant, which gets its changed function by exchanging the function's code. Only what is executed
by an import, a constant or a default, needs an import of its own. Time is processor time, so that a busy machine
changes no verdict. Results are kept in `.cache/mutants`, as are the lines of each test, which are measured again for a
test file or module that changes.
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
import tomllib
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from studies.mutant_tests import ROOT, Judge, Lines, Selection, Tracer, put_in_place, test_name
from studies.mutation import Mutant, mutants

EQUIVALENT = ROOT / "studies" / "equivalent_mutants.toml"
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
    "scheduling": [
        f"tests/scheduling/test_{name}.py"
        for name in ("account", "allocation", "baselines", "blocks", "contract", "curve", "dual", "lyapunov", "uplink")
    ],
    "wireless": ["tests/wireless/*.py"],
    "round": [
        f"tests/simulation/test_{name}.py" for name in ("round", "run", "faults", "batteries", "sent_bits", "recompute")
    ]
    + ["tests/deploy/test_validation.py"],
    "checkpoint": ["tests/runfolder/test_checkpoint.py", "tests/simulation/test_resume.py"],
    "validation": ["tests/deploy/test_validation.py", "tests/deploy/test_parts.py"],
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
    parser.add_argument("--seed", type=int, nargs="+", default=[0], help="which samples (default 0)")
    parser.add_argument("--count", type=int, default=10, help="mutants of each group (default 10)")
    parser.add_argument("--modules", nargs="+", choices=GROUPS, default=list(GROUPS), help="groups (default all)")
    parser.add_argument("--near", nargs="+", help="test files in place of the nearest ones")
    parser.add_argument("--line", type=int, help="instead of a sample: every mutant of this line (groups of one file)")
    parser.add_argument("--label", default="now", help="column of the table: before, after (default now)")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of tests for each mutant (default 60)")
    parser.add_argument("--work", type=Path, default=ROOT / ".cache" / "mutants", help="folder for copies and results")
    parser.add_argument("--table", type=Path, help="only write the table of the samples kept in the work folder")
    options = parser.parse_args()
    if options.table:
        options.table.write_text(table(options.work))
        return 0
    import_once()
    for group in options.modules:
        study = Study(group, options.work, options.budget, options.near or _expand(NEAREST[group]))
        seeds = {} if options.line else {seed: study.draw(seed, options.count) for seed in options.seed}
        drawn = study.of_line(options.line) if options.line else [one for some in seeds.values() for one in some]
        played = study.play(list(dict.fromkeys(drawn)))
        for seed, some in seeds.items():
            kept = options.work / "results" / f"{options.label}-{seed}" / f"{group}.json"
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps([played[mutant] for mutant in some], indent=1))
        print(summary(group, [played[mutant] for mutant in drawn]), flush=True)
    return 0


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

    def __init__(self, group: str, work: Path, budget_s: float, near: Iterable[str]) -> None:
        self.group, self.work, self.budget_s = group, work, budget_s
        self.copy = work / f"copy-{group}"
        shutil.rmtree(self.copy, ignore_errors=True)
        compileall.compile_dir(ROOT / "src", quiet=2)  # the copy's files have the same times, so this holds for them
        shutil.copytree(ROOT / "src", self.copy)
        (work / "lines").mkdir(parents=True, exist_ok=True)
        self.modules = _expand(GROUPS[group])
        self.maps = {name: self.map_path(name) for name in [*near, *self.modules]}
        """Test files, and where their lines are kept."""
        self.near: dict[str, dict[str, tuple[float, Lines]]] = {}

    def draw(self, seed: int, count: int) -> list[Mutant]:
        """Mutants at random: each place that can be changed is as likely as any other."""
        places: dict[tuple[str, int, int], list[Mutant]] = defaultdict(list)
        for module in self.modules:
            for mutant in mutants(module, (ROOT / module).read_bytes()):
                places[module, mutant.start, mutant.end].append(mutant)
        chance = random.Random(f"{seed}/{self.group}")
        chosen = chance.sample(sorted(places), min(count, len(places)))
        return [chance.choice(places[place]) for place in chosen]

    def of_line(self, line: int) -> list[Mutant]:
        """Every mutant of one line of the group's modules."""
        found = [mutants(module, (ROOT / module).read_bytes()) for module in self.modules]
        return [mutant for one in found for mutant in one if mutant.line == line]

    def map_path(self, name: str) -> Path:
        """Where the lines of a test file are kept: elsewhere when it or a module changes."""
        digest = hashlib.blake2b(digest_size=8)
        for path in [ROOT / name, *map(ROOT.joinpath, self.modules), *(ROOT / name).parent.glob("conftest.py")]:
            digest.update(path.read_bytes())
        return self.work / "lines" / f"{self.group}-{name.replace('/', '.')}-{digest.hexdigest()}.json"

    def play(self, drawn: list[Mutant]) -> dict[Mutant, dict[str, Any]]:
        """What became of each mutant."""
        inside = [mutant for mutant in drawn if mutant.in_body]
        kept = self.work / f"played-{self.group}.json"
        kept.unlink(missing_ok=True)
        # One process collects the tests and is forked for each mutant of a function; it also measures the lines.
        code, output = self.child(lambda: self.pytest(list(self.maps), [Server(self, inside, kept)]), 3600, 36000)
        if not kept.exists():
            raise SystemExit(f"The tests cannot be run ({code}):\n{output[-2000:]}")
        self.near = {name: json.loads(path.read_text()) for name, path in self.maps.items()}
        played = dict(zip(inside, json.loads(kept.read_text()), strict=True))
        # What an import executes needs an import of its own.
        return played | {mutant: self.play_by_import(mutant) for mutant in drawn if mutant not in played}

    def play_by_import(self, mutant: Mutant) -> dict[str, Any]:
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

    def result(self, mutant: Mutant, tests: dict[str, float], code: int, killer: str) -> dict[str, Any]:
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

        What is executed by an import alone, a constant or a default, is met by whatever uses the function or file.
        """
        reach = []
        for first, last in (mutant.lines, mutant.scope):
            for tests in self.near.values():
                for test, (seconds, lines) in tests.items():
                    if any(first <= line <= last for line in lines.get(mutant.path, ())):
                        reach.append((seconds, test))
            if reach or mutant.in_body:
                break
        chosen: dict[str, float] = {}
        for seconds, test in sorted(reach):
            if chosen and sum(chosen.values()) + seconds > self.budget_s:
                break
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
        options += f" -W ignore::pytest.PytestAssertRewriteWarning --basetemp={self.work}/tmp-{self.group}"
        return int(pytest.main([*options.split(), *more, *paths], plugins))

    def child(self, work: Callable[[], int], cpu_s: float, wall_s: float) -> tuple[int | None, str]:
        """Do something in a forked process: its exit code, None if it took too long, and what it printed."""
        output = self.work / f"output-{self.group}-{os.getpid()}.txt"
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

    def __init__(self, study: Study, drawn: list[Mutant], kept: Path) -> None:
        self.study, self.drawn, self.kept = study, drawn, kept
        self.items: dict[str, pytest.Item] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of running the tests: measure those that nobody has measured, then play."""
        study = self.study
        self.items = {test_name(item, study.copy): item for item in session.items}
        for name, path in study.maps.items():
            if not path.exists():
                of_file = [test for test in self.items if test.startswith(f"{name.removeprefix('src/')}::")]
                tracer = Tracer(path, study.copy, study.modules)
                study.child(partial(self.run, of_file, tracer), 3600, 36000)
                print(f"{len(of_file)} tests of {name} measured", file=sys.__stderr__, flush=True)
            study.near[name] = json.loads(path.read_text())
        played = [self.play(mutant) for mutant in self.drawn]
        self.kept.write_text(json.dumps(played))
        return True

    def play(self, mutant: Mutant) -> dict[str, Any]:
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


def is_equivalent(result: dict[str, Any]) -> str | None:
    """Why a survivor is judged equivalent; None if it is not."""
    for entry in tomllib.loads(EQUIVALENT.read_text()).get("mutant", []) if EQUIVALENT.exists() else []:
        if all(entry[name] == result[name] for name in ("module", "function", "before", "after")):
            return str(entry["why"])
    return None


def summary(group: str, played: list[dict[str, Any]]) -> str:
    """One line on a group, and its survivors."""
    survivors = [one for one in played if not one["verdict"].startswith("killed")]
    judged = [(one, is_equivalent(one)) for one in survivors]
    equivalent = sum(why is not None for _, why in judged)
    alive, real = len(survivors) - equivalent, len(played) - equivalent
    share = 100 * (real - alive) / real if real else 100.0
    lines = [f"{group:12}{len(played):8}{len(played) - len(survivors):8}{equivalent:12}{alive:10}{share:8.0f} %"]
    for one, why in judged:
        if why is None:
            lines += [f"    {one['verdict']}: {one['module']}:{one['line']} {one['function']}"]
            lines += [f"      - {one['before']}", f"      + {one['after']}"]
    return "\n".join(lines)


def table(work: Path) -> str:
    """All samples that were played, with what survived."""
    text = ["Mutants of the core modules under the nearest tests: python -m studies.mutants", ""]
    for folder in sorted((work / "results").iterdir()):
        text += [
            f"sample {folder.name}",
            f"{'':12}{'mutants':>8}{'killed':>8}{'equivalent':>12}{'alive':>10}{'noticed':>10}",
        ]
        everything: list[dict[str, Any]] = []
        for group in GROUPS:
            if (folder / f"{group}.json").exists():
                played = json.loads((folder / f"{group}.json").read_text())
                everything += played
                text.append(summary(group, played).partition("\n")[0])
        text += [*summary("all", everything).splitlines(), ""]
    return "\n".join(text)


if __name__ == "__main__":
    sys.exit(main())
