"""Run the study, or make its tables of what was run."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from studies.common_encoder.run import PARTS, run

OUT = Path("docs/results/common-encoder")


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse and do it."""
    parser = argparse.ArgumentParser(prog="python -m studies.common_encoder", description=__doc__)
    parser.add_argument("what", choices=(*PARTS, "networks", "table"))
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--seeds", default="0,1,2,3,4", help="seeds, with commas between")
    parser.add_argument("--conditions", default="", help="conditions, with commas between; all if left out")
    parser.add_argument("--methods", default="", help="methods on networks, with commas between; all if left out")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    options = parser.parse_args(arguments)
    seeds = [int(word) for word in options.seeds.split(",")]
    if options.what == "networks":
        from studies.common_encoder.networks import METHODS, USUAL, play

        names = options.conditions.split(",") if options.conditions else USUAL
        methods = options.methods.split(",") if options.methods else tuple(METHODS)
        play(options.out / "networks", names, seeds, options.workers, methods)
    elif options.what != "table":
        run(options.out, options.what, seeds, options.conditions, options.workers)
    else:
        from studies.common_encoder.tables import write

        write(options.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
