"""Fit the projections of the encoder scattering that come with the package.

    python -m studies.scattering_projection            # write the files
    python -m studies.scattering_projection --check    # fit again, and say how far the files are from that

No data is read: they are fitted to 3,000 drawn images. On two cores it takes about two minutes.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import numpy as np

import kfl.encoders
from kfl.encoders.scattering import fit_projection

SHAPES = ((3, 32, 32), (1, 28, 28))
FOLDER = Path(kfl.encoders.__file__).parent / "projections"


def main() -> None:
    """Write or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare the files with a new fit")
    check = parser.parse_args().check
    for shape in SHAPES:
        path, content = FOLDER / f"scattering-{'x'.join(map(str, shape))}.npz", fit_projection(shape)
        if not check:
            path.write_bytes(content)
            print(f"{path.name}: {len(content):,} bytes")
            continue
        with np.load(path) as kept, np.load(io.BytesIO(content)) as new:
            off = max(float(np.abs(kept[name].astype(float) - new[name]).max()) for name in kept.files)
        print(f"{path.name}: {off:.1e} from a new fit")


if __name__ == "__main__":
    main()
