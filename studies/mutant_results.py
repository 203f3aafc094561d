"""What became of mutants: kept as it comes, judged, and printed as a table; for `studies.mutants`."""

from __future__ import annotations

import json
import re
import tomllib
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

from studies.mutant_tests import ROOT
from studies.mutation import Mutant

EQUIVALENT = ROOT / "studies" / "equivalent_mutants"
"""A file for each group: survivors that no test can kill, with the reason."""
LABELS = ("before", "after")
"""Columns of the table: the tests before the study, and with the tests that were written for it."""

Result = dict[str, Any]


class Sample:
    """The results of one sample under one label, a file for each module, written after each mutant."""

    def __init__(self, work: Path, label: str, name: str) -> None:
        self.folder, self.work, self.name = work / "results" / f"{label}-{name}", work, name

    def before(self) -> Sample:
        """The same sample under the tests before the study."""
        return Sample(self.work, LABELS[0], self.name)

    def read(self, module: str) -> dict[str, Result]:
        """What became of a module's mutants, by mutant."""
        path = self.path(module)
        return json.loads(path.read_text()) if path.exists() else {}

    def keep(self, mutant: Mutant, result: Result) -> None:
        """Add one."""
        found, path = self.read(mutant.path), self.path(mutant.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(found | {key_of(mutant): result}, indent=1))
        fresh.replace(path)

    def path(self, module: str) -> Path:
        """Where a module's results are kept."""
        return self.folder / f"{module.removeprefix('src/kfl/').replace('/', '.')}.json"

    def modules(self) -> list[Path]:
        """The files of the modules that were played."""
        return sorted(self.folder.glob("*.json"))


def key_of(mutant: Mutant) -> str:
    """What tells a mutant from every other of its module."""
    return f"{mutant.start}-{mutant.end}:{mutant.new.decode()}"


def is_alive(result: Result) -> bool:
    """Whether a mutant survived that some test should have noticed."""
    return not result["verdict"].startswith("killed") and why_equivalent(result) is None


def why_equivalent(result: Result) -> str | None:
    """Why a survivor is judged equivalent; None if it is not."""
    return _equivalent().get(tuple(result[name] for name in ("module", "function", "before", "after")))


@cache
def _equivalent() -> dict[tuple[str, ...], str]:
    entries = [one for path in sorted(EQUIVALENT.glob("*.toml")) for one in tomllib.loads(path.read_text())["mutant"]]
    return {tuple(one[name] for name in ("module", "function", "before", "after")): one["why"] for one in entries}


def survivors(results: list[Result]) -> list[str]:
    """Lines on the mutants that are alive."""
    lines = []
    for one in results:
        if is_alive(one):
            lines += [f"    {one['verdict']}: {one['module']}:{one['line']} {one['function']}"]
            lines += [f"      - {one['before']}", f"      + {one['after']}"]
    return lines


def counts(results: list[Result]) -> tuple[int, int, int, int]:
    """Mutants, killed, equivalent, alive."""
    killed, alive = sum(one["verdict"].startswith("killed") for one in results), sum(map(is_alive, results))
    return len(results), killed, len(results) - killed - alive, alive


def noticed(results: list[Result]) -> str:
    """The share of mutants that are not equivalent and were killed."""
    _, killed, _, alive = counts(results)
    return f"{100 * killed / (killed + alive):.0f} %" if killed + alive else "-"


def summary(title: str, results: list[Result]) -> str:
    """One line on some mutants, and those that are alive."""
    total, killed, equivalent, alive = counts(results)
    line = f"{title:28}{total:5} mutants, {killed} killed, {equivalent} equivalent, {alive} alive: {noticed(results)}"
    return "\n".join([line, *survivors(results)])


def current(module: str, kept: dict[str, Result]) -> list[Result]:
    """The results that speak of the module as it is now: mutants are known by their text, which lines above may move.

    Of mutants with the same text that fared differently, the one that is alive counts.
    """
    source = re.sub(r"\s+", " ", (ROOT / module).read_text())
    found: dict[tuple[str, ...], Result] = {}
    for one in kept.values():
        text = one["function"], one["before"], one["after"]
        if one["before"] in source and (text not in found or is_alive(one)):
            found[text] = one
    return list(found.values())


def table(work: Path, groups: dict[str, list[str]]) -> str:
    """All samples: a row for each module and group, before and after, then what is alive."""
    names = sorted({folder.name.partition("-")[2] for folder in (work / "results").iterdir()})
    return "\n".join(line for name in names for line in _sample(work, name, groups))


def _sample(work: Path, name: str, groups: dict[str, list[str]]) -> list[str]:
    samples = {label: Sample(work, label, name) for label in LABELS}
    head = f"{'':34}{'mutants':>8}{'equivalent':>12}" + "".join(f"{label:>20}" for label in LABELS)
    lines = ["every mutant" if name == "every" else f"sample of seed {name}", head]
    everything: dict[str, list[Result]] = defaultdict(list)
    for group, modules in groups.items():
        of_group: dict[str, list[Result]] = defaultdict(list)
        rows = []
        for module in modules:
            found = {label: current(module, sample.read(module)) for label, sample in samples.items()}
            if any(found.values()):
                rows.append(_row(f"  {module.removeprefix('src/kfl/')}", found))
            for label, results in found.items():
                of_group[label] += results
                everything[label] += results
        if rows:
            lines += [_row(group, of_group), *(rows if len(rows) > 1 else [])]
    alive = survivors(everything["after"])
    return [*lines, _row("all", everything), *(["  alive after:", *alive] if alive else []), ""]


def _row(title: str, found: dict[str, list[Result]]) -> str:
    newest = found["after"] or found["before"]
    total, _, equivalent, _ = counts(newest)
    cells = [f"{counts(found[label])[1]} killed, {noticed(found[label])}" if found[label] else "-" for label in LABELS]
    return f"{title:34}{total:8}{equivalent:12}" + "".join(f"{cell:>20}" for cell in cells)
