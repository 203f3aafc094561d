"""`kfl deploy run`: start the run of a fleet's project on its SuperLink and keep it going to the last round."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from kfl.cli.options import parse

DESCRIPTION = """Start the run of a fleet's project on its SuperLink, or go on with it, and print every round.

A server that dies is started anew and goes on with the next round; a SuperLink that is away is waited for. Ended with
Ctrl-C, the run itself goes on: this command only watches over it."""


@dataclass(frozen=True)
class RunOptions:
    """What `kfl deploy run` takes."""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")] = Path()
    """The project that kfl deploy new wrote. By default the current folder."""


def main(arguments: Sequence[str]) -> int:
    """Submit, watch, and start anew where needed."""
    options = parse(RunOptions, arguments, "kfl deploy run", DESCRIPTION)
    from kfl.deploy.sentences import round_sentence
    from kfl.deploy.starter import Project
    from kfl.deploy.starter.keeper import keep_running

    project = Project.need(options.folder)
    rounds = project.config.experiment.rounds
    try:
        for entry in keep_running(project, lambda said: print(said, flush=True)):
            print(round_sentence(entry, rounds), flush=True)
    except KeyboardInterrupt:
        print("\nkfl: interrupted; the run itself goes on. To watch over it again: kfl deploy run", file=sys.stderr)
        return 130
    print(f"The run is finished: {project.run_folder}")
    return 0
