"""What a comparison leaves in its folder, which holds the last one that was asked for:

comparison.json    by label: the run folder of each seed; written before the first run
results.jsonl      one line per finished run
<run folder>/      one for each run; those of earlier comparisons stay, and are not repeated when asked for again
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kfl.core.files import write_json
from kfl.core.parse import read_json

COMPARISON = "comparison.json"
"""File that says which run folder belongs to which label."""


def write_entries(folder: Path, runs: Mapping[str, Mapping[int, Path]], reference: str) -> None:
    """Write down which run folder, inside `folder`, belongs to which label and seed."""
    entries = {label: {"runs": {str(seed): path.name for seed, path in paths.items()}} for label, paths in runs.items()}
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / COMPARISON, {"reference": reference, "entries": entries})


def read_entries(folder: Path) -> dict[str, dict[int, Path]]:
    """The run folders of a comparison by label and seed; they need not exist yet. Empty where there is none.

    >>> read_entries(Path("nowhere"))
    {}
    """
    try:
        entries = read_json(folder / COMPARISON)["entries"]
        return {
            str(label): {int(seed): folder / Path(str(name)).name for seed, name in entry["runs"].items()}
            for label, entry in entries.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def read_reference(folder: Path) -> str | None:
    """The label that the others were compared with; None where nobody says."""
    try:
        return str(read_json(folder / COMPARISON)["reference"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
