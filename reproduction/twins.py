"""The published twin study: every method beside twins that upload nothing, in twelve conditions.

python -m reproduction twins --from docs/results/sharing --conditions cifar10-m2    # its committed results
python -m reproduction twins --search --out DIR --device cuda                       # again; a GPU, or days
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from kfl.cli.setting import parse_setting
from kfl.cli.sharing import SharingOptions, answer, study_of
from kfl.core.errors import ConfigError
from kfl.sharing import Condition
from reproduction.twin_conditions import published
from reproduction.twin_picture import draw

PROG = "python -m reproduction twins"
DESCRIPTION = f"""Run the published twin study, or show its results again.

  {PROG} --from docs/results/sharing --conditions cifar10-m2
  {PROG} --search --out DIR --device cuda     a GPU, or days

Out come a table and a picture: points over the best twin, paired by seed and corrected for the number of questions,
against the bits that a device uploads in a round. Finished runs are never repeated."""


@dataclass(frozen=True)
class TwinsOptions(SharingOptions):
    """What `python -m reproduction twins` takes."""

    conditions: Annotated[str, tyro.conf.arg(metavar="NAMES")] = "all"
    """Which of the published conditions, separated by commas."""


def main(arguments: Sequence[str]) -> int:
    """Parse, run what is missing, answer."""
    options, _ = parse_setting(TwinsOptions, arguments, PROG, DESCRIPTION)
    study, left_out = study_of(options, conditions(options.conditions), None)
    folder = options.setting.out or options.source or Path("runs/twins")
    return answer(options, study, left_out, folder, f"{PROG} {shlex.join(arguments)}", draw)


def conditions(names: str) -> list[Condition]:
    """The published conditions of these names, separated by commas; `all` are all."""
    known = published()
    words = list(known) if names == "all" else [word for word in names.replace(" ", "").split(",") if word]
    for word in words:
        if word not in known:
            raise ConfigError("conditions", word, f"one of {', '.join(known)}", choices=known)
    return [known[word] for word in words]
