"""Runs beside a run that say what its accuracy is worth: the same devices alone, and pulled without any upload.

They are looked for inside the run folder and beside it, as `kfl compare` leaves them: everything but the algorithm must
be the same, the seed too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kfl.core.errors import KflError
from kfl.experiment import identity_fields
from kfl.runfolder import RunData, RunReader, read_run, runs_in

ZERO_UPLOAD = ("fixed-knowledge", "self-knowledge")
"""Algorithms with the pull of KFL and not one upload, the sterner first."""
MOST_NEIGHBOURS = 300
"""Folders beside a run that are looked at."""


@dataclass(frozen=True, eq=False)
class Companions:
    """What a run can be held against, where it was run."""

    alone: RunData | None = None
    """The same devices training alone."""
    pulled: RunData | None = None
    """The same devices with a pull, and nothing uploaded."""


def companions(run: RunData) -> Companions:
    """The companions of a run; none for a run that itself uploads nothing."""
    alone = run.twin
    if run.algorithm in ("local", *ZERO_UPLOAD):
        return Companions(alone)
    wanted = _setting(run.config)
    found: dict[str, RunData] = {}
    for path in [*runs_in(run.path), *runs_in(run.path.resolve().parent)[:MOST_NEIGHBOURS]]:
        try:
            config = RunReader(path).config()
            name = _algorithm(config).get("name")
            if name in ("local", *ZERO_UPLOAD) and name not in found and _matches(config, run.config, wanted):
                found[str(name)] = read_run(path)
        except KflError:
            continue  # a neighbour that cannot be read is none
    pulled = next((found[name] for name in ZERO_UPLOAD if name in found), None)
    return Companions(found.get("local") if alone is None else alone, pulled)


def _matches(config: Mapping[str, Any], ours: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether all but the algorithm is the same, and what both algorithms have is, too."""
    if _setting(config) != wanted:
        return False
    mine, theirs = _algorithm(ours), _algorithm(config)
    return all(mine[name] == theirs[name] for name in mine.keys() & theirs.keys() if name != "name")


def _setting(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in identity_fields(dict(config)).items() if name != "algorithm"}


def _algorithm(config: Mapping[str, Any]) -> Mapping[str, Any]:
    table = config.get("algorithm")
    return table if isinstance(table, Mapping) else {"name": table}
