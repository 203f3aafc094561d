"""The paper again: `python -m reproduction figures | claims | bound RUN | twins | energy NAME`, in a clone."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from kfl.cli.main import dispatch, serve_safely
from kfl.core.errors import ConfigError

PROG = "python -m reproduction"
COMMANDS = {
    "figures": ("reproduction.figures_command:main", "List the paper's figures, or run, draw and tabulate some."),
    "claims": ("reproduction.figures_command:claims_main", "Judge every claim of the paper from the results."),
    "bound": ("reproduction.bound:main", "Evaluate Theorem 1 and Proposition 2 for a run or for given constants."),
    "twins": ("reproduction.twins:main", "Run the published twin study, or show its results."),
    "energy": ("reproduction.__main__:energy", "Run a study of energy that trains little or nothing."),
}
"""Commands: the function `(arguments) -> exit status` that serves each, and one line of help."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return serve_safely("reproduction.__main__:choose", words)


def choose(arguments: Sequence[str]) -> int:
    """Serve one command, or list them."""
    return dispatch(PROG, COMMANDS, arguments)


def energy(arguments: Sequence[str]) -> int:
    """Run a module of `reproduction.energy` as `python -m` does; without a name, list them."""
    names = sorted(path.stem for path in (Path(__file__).parent / "energy").glob("[a-z]*.py"))
    name = arguments[0] if arguments else ""
    if name in ("", "-h", "--help"):
        dispatch(f"{PROG} energy", {one: ("", _about(one)) for one in names}, [])
        return 0
    if name not in names:
        raise ConfigError("NAME", name, f"one of {', '.join(names)}", choices=names)
    before = sys.argv
    sys.argv = [f"{PROG} energy {name}", *arguments[1:]]
    try:
        runpy.run_module(f"reproduction.energy.{name}", run_name="__main__")
    finally:
        sys.argv = before
    return 0


def _about(name: str) -> str:
    """The first line of a study's docstring."""
    text = (Path(__file__).parent / "energy" / f"{name}.py").read_text(encoding="utf-8")
    return text.removeprefix('"""').partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
