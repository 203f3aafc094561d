"""What a run ran on, for the run folder: versions, commit, hardware, and what its configuration cannot name."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from kfl._version import __version__

OBJECTS = ("dataset", "models")
_OLD_SENTENCES: dict[str, tuple[str, ...]] = {
    "yes": (),
    "no: dataset were given as Python objects; name them as package.module:function instead": ("dataset",),
    "no: models were given as Python objects; name them as package.module:function instead": ("models",),
}
"""What folders of earlier versions say in place of a list; any other sentence means both."""


def given_as_objects(environment: Mapping[str, Any]) -> tuple[str, ...]:
    """What the configuration of a run cannot rebuild, of "dataset" and "models": it was given as a Python object.

    Of a real fleet it is both: devices bring their own.

    >>> given_as_objects({"given_as_objects": ["models"]}), given_as_objects({"repeatable": "yes"})
    (('models',), ())
    """
    if "repeatable" in environment:
        return _OLD_SENTENCES.get(str(environment["repeatable"]), OBJECTS)
    found = environment.get("given_as_objects", ())
    return tuple(name for name in OBJECTS if isinstance(found, list) and name in found)


def describe_environment() -> dict[str, Any]:
    """Versions, commit, hardware and the command that was given."""
    import torch

    cuda = torch.cuda.is_available()
    return {
        "kfl": __version__,
        "commit": _commit(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in ("torch", "numpy", "scipy")},
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if cuda else None,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the source, with a plus sign when it has changes; None outside a checkout."""
    source = Path(__file__).resolve().parents[3]
    if not (source / ".git").exists():
        return None
    try:
        run = ["git", "-C", str(source), "describe", "--always", "--dirty=+", "--abbrev=12"]
        return subprocess.run(run, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _processor() -> str:
    """The processor's name as Linux knows it, or what Python knows."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
