"""The command `kfl`: finds the subcommand, runs it, and turns errors into one sentence and an exit status.

Exit status: 0 done, 2 bad input (one sentence on standard error), 130 interrupted.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import entry_points

from kfl._version import __version__
from kfl.core.errors import KflError, ShortOfMemoryError
from kfl.core.suggest import nearest
from kfl.core.terminal import tell, tell_exactly

COMMANDS = {
    "demo": ("kfl.cli.demo:main", "Compare seven methods in one cell short of energy and band, in about a minute."),
    "run": ("kfl.cli.run:main", "Run an experiment on a fleet of simulated devices."),
    "compare": (
        "kfl.cli.compare:main",
        "Compare algorithms, schedulers or options over seeds, with paired intervals.",
    ),
    "export": ("kfl.cli.export:main", "Write the trained models of chosen devices as safetensors."),
    "schedule": (
        "kfl.cli.schedule:main",
        "Schedule the devices in a file: who sends, with which share and power.",
    ),
    "report": ("kfl.cli.report:main", "Write one HTML page of a run, of several runs, or of one in progress."),
    "resume": ("kfl.cli.run:resume", "Continue a run that was interrupted."),
    "doctor": ("kfl.cli.doctor:main", "Check the installation and the data, with fixes."),
    "completion": ("kfl.cli.completion:main", "Print a completion script for bash, zsh or fish."),
    "data": ("kfl.cli.data:main", "Show how a dataset is split over devices; download a dataset."),
}
"""Subcommands: the function `(arguments) -> exit status` that serves each, and one line of help."""

GROUPS = {
    "Commands": ("demo", "run", "compare", "report", "schedule", "deploy"),
    "Used rarely": ("resume", "export", "data", "doctor", "completion"),
}
"""Titles of `kfl --help` with their commands."""

GROUP = "kfl.commands"
"""Entry points by which installed packages add commands: `deploy = package.module:function`."""
ADDED = {"deploy": ("kfl-fleet", "fleet", "Run on real devices over Flower: start, watch and rehearse a fleet.")}
"""Commands of packages that belong to kfl: the package, the extra that installs it, and one line of help."""

MEANT = {
    "train": "run",
    "start": "run",
    "simulate": "run",
    "simulation": "run",
    "continue": "resume",
    "restart": "resume",
    "plot": "report",
    "show": "report",
    "results": "report",
    "html": "report",
    "dashboard": "report",
    "search": "compare",
    "sweep": "compare",
    "hpo": "compare",
    "benchmark": "compare",
    "save": "export",
    "check": "doctor",
    "info": "doctor",
    "init": "new",
    "create": "new",
    "dataset": "data",
    "datasets": "data",
    "fetch": "download",
    "get": "download",
}
"""What other programs call our commands."""


SUCCESSORS = {
    "bound": "kfl bound is now python -m reproduction bound, in a clone of the repository.",
    "paper": "kfl paper is now python -m reproduction figures (and claims), in a clone of the repository.",
}
"""What commands of earlier versions answer."""
REWRITTEN = {
    "playground": "kfl.cli.schedule:playground",
    "sharing": "kfl.cli.compare:sharing",
    "tune": "kfl.cli.compare:tune",
    "watch": "kfl.cli.report:watch",
}
"""Commands of earlier versions that are served by another one, which says so on the error stream."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["help"]:  # kfl help run, kfl help data show
        words = [*words[1:], "--help"]
    if not words or words[0] in ("-h", "--help"):
        tell_exactly(usage() + "\n")
        return 0
    if words[0] in ("-V", "--version", "version"):
        tell(f"kfl {__version__}")
        return 0
    if words[0] in SUCCESSORS:
        return _fail(SUCCESSORS[words[0]])
    try:
        address = address_of(words[0])
    except KflError as problem:
        return _fail(str(problem), problem.exit_status)
    sys.path.insert(0, "")  # so that "my_module:function" finds a file in the current folder, as python -m would
    return serve_safely(address, words[1:])


def serve_safely(address: str, arguments: Sequence[str]) -> int:
    """Call the command at `module:name`; every expected error becomes one sentence and an exit status."""
    try:
        return serve(address, arguments)
    except SystemExit as end:  # tyro's, after help or an explanation
        return end.code if isinstance(end.code, int) else 2
    except KflError as problem:
        return _fail(str(problem), problem.exit_status)
    except KeyboardInterrupt:
        tell("", "kfl: interrupted; everything finished is on disk, and kfl resume continues a run.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output went away, as in `kfl ... | head`
        sys.stderr.close()
        return 0
    except OSError as problem:  # such as a full disk where the output goes
        where = f"{problem.filename}: " if problem.filename else ""
        return _fail(f"OS error: {where}{problem.strerror or problem}.")
    except (MemoryError, RuntimeError, ImportError) as problem:
        if not ShortOfMemoryError.means(problem):
            raise
        return _fail(str(ShortOfMemoryError()))


def added_commands() -> dict[str, tuple[str, str]]:
    """Commands that installed packages add: the function that serves each, and one line of help."""
    found = {entry.name: entry for entry in entry_points(group=GROUP) if entry.name not in COMMANDS}
    own = {name: line for name, (_, _, line) in ADDED.items()}
    return {name: (entry.value, own.get(name, f"A command of {entry.module}.")) for name, entry in found.items()}


def address_of(name: str) -> str:
    """Return the function that serves a command; KflError if there is none."""
    if name in COMMANDS or name in REWRITTEN:
        return REWRITTEN.get(name) or COMMANDS[name][0]
    added = added_commands()
    if name in added:
        return added[name][0]
    if name in ADDED:
        package, extra, _ = ADDED[name]
        raise KflError(f"kfl {name} is in the package {package}: pip install 'kfl[{extra}]'.")
    known = [*COMMANDS, *ADDED, *(other for other in added if other not in ADDED)]
    near = nearest(name, known, MEANT)
    hint = f"did you mean 'kfl {near}'?" if near else f"the commands are {', '.join(known)}."
    raise KflError(f"There is no command 'kfl {name}'; {hint}")


def serve(address: str, arguments: Sequence[str]) -> int:
    """Call the function at `module:name`, which is imported only now: help texts must not wait for other commands."""
    module, _, name = address.partition(":")
    status: int = getattr(importlib.import_module(module), name)(arguments)
    return status


def dispatch(prog: str, commands: Mapping[str, tuple[str, str]], arguments: Sequence[str]) -> int:
    """Serve a command of commands, such as `show` of `kfl data`; without a word, or with --help, list them."""
    if arguments and arguments[0] in commands:
        return serve(commands[arguments[0]][0], arguments[1:])
    if arguments and arguments[0] not in ("-h", "--help"):
        near = nearest(arguments[0], commands, MEANT)
        hint = f"did you mean '{prog} {near}'?" if near else f"use {' or '.join(commands)}."
        raise KflError(f"There is no command '{prog} {arguments[0]}'; {hint}")
    names = ",".join(commands)
    lines = _listed(prog, commands)
    tell(f"usage: {prog} {{{names}}} [OPTIONS]", "", *lines, "", "Each has --help.")
    return 0


def _listed(prog: str, commands: Mapping[str, tuple[str, str]], names: Collection[str] | None = None) -> list[str]:
    width = max(map(len, commands))
    return [f"  {prog} {name:<{width}}  {commands[name][1]}" for name in names or commands]


def usage() -> str:
    """What `kfl --help` prints."""
    known = {**COMMANDS, **{name: ("", line) for name, (_, _, line) in ADDED.items()}, **added_commands()}
    listed = {name for names in GROUPS.values() for name in names}
    return "\n".join(
        [
            f"kfl {__version__}: federated learning that fits the battery and the band.",
            *(line for title, names in GROUPS.items() for line in ("", f"{title}:", *_listed("kfl", known, names))),
            *(
                ["", "Others:", *_listed("kfl", known, rest)]
                if (rest := [name for name in known if name not in listed])
                else []
            ),
            "",
            "Help: kfl COMMAND --help. Start with: kfl demo",
        ]
    )


def _fail(sentence: str, status: int = 2) -> int:
    tell(f"kfl: {sentence}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
