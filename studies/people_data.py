"""Three sets by person, in the form that `--dataset FILE --split natural` takes: for `studies.common_encoder`.

    pip download --no-deps seglearn==1.2.5                                   # BSD: shoulder exercises, a smart watch
    git clone https://github.com/Jakobovski/free-spoken-digit-dataset        # CC BY-SA 4.0: digits of six speakers
    apt-get download r-cran-mlbench && dpkg-deb -x r-cran-mlbench*.deb deb   # Deterding's vowels; pip install rdata
    python -m studies.people_data data/people --watch seglearn-1.2.5-py3-none-any.whl \
        --digits free-spoken-digit-dataset/recordings --vowel deb/usr/lib/R/site-library/mlbench/data/Vowel.rda

With KFL_DATA_DIR=data the study finds them. Whichever source is left out is not made.
"""

from __future__ import annotations

import argparse
import io
import pickle
import wave
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kfl.core.files import write_atomic

STEPS = 128
"""Of a window, 2.6 s of the watch."""
CLIP = 8000
"""Of a recording: its first second; shorter ones are in the middle of it."""
Arrays = dict[str, np.ndarray]


class _OnlyArrays(pickle.Unpickler):
    """A pickle of NumPy arrays and plain values: anything else in it is refused."""

    def find_class(self, module: str, name: str) -> Any:
        """The few names that arrays are made of."""
        known = {*(("numpy", one) for one in ("_reconstruct", "scalar", "ndarray", "dtype")), ("_codecs", "encode")}
        if (module.partition(".")[0], name) not in known:
            raise pickle.UnpicklingError(f"{module}.{name} is no array")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def watch(wheel: Path) -> Arrays:
    """Recordings of six channels at 50 Hz, cut into windows that do not overlap."""
    content = io.BytesIO(zipfile.ZipFile(wheel).read("seglearn/data/watch_dataset.npy"))
    np.lib.format.read_magic(content)
    np.lib.format.read_array_header_1_0(content)
    data = _OnlyArrays(content, encoding="latin1").load().item()
    x, y, device = [], [], []
    for series, label, person in zip(data["X"], data["y"], data["subject"], strict=True):
        for start in range(0, len(series) - STEPS + 1, STEPS):
            x.append(np.asarray(series[start : start + STEPS], np.float32).T)
            y.append(int(label))
            device.append(f"person-{int(person):02d}")
    return {"x": np.stack(x), "y": np.array(y, np.int64), "device": np.array(device)}


def digits(folder: Path) -> Arrays:
    """Recordings at 8 kHz named digit_speaker_number.wav."""
    x, y, device = [], [], []
    for path in sorted(folder.glob("*.wav")):
        label, speaker, _ = path.stem.split("_")
        with wave.open(str(path)) as sound:
            values = np.frombuffer(sound.readframes(sound.getnframes()), "<i2")
        clip = values[:CLIP]
        left = (CLIP - len(clip)) // 2
        x.append(np.pad(clip, (left, CLIP - len(clip) - left))[None])
        y.append(int(label))
        device.append(speaker)
    return {"x": np.stack(x).astype(np.int16), "y": np.array(y, np.int64), "device": np.array(device)}


def vowel(path: Path) -> Arrays:
    """Nine numbers of each vowel."""
    import rdata

    table = rdata.read_rda(path)["Vowel"]
    numbers = [name for name in table.columns if name not in ("V1", "Class")]
    classes = table["Class"].astype("category").cat.codes.to_numpy(np.int64)
    people = np.array([f"speaker-{int(str(one)):02d}" for one in table["V1"]])
    return {"x": table[numbers].to_numpy(np.float32), "y": classes, "device": people}


def main(arguments: Sequence[str] | None = None) -> int:
    """Make what sources are given for."""
    parser = argparse.ArgumentParser(prog="python -m studies.people_data", description=__doc__)
    parser.add_argument("out", type=Path)
    for name in ("watch", "digits", "vowel"):
        parser.add_argument(f"--{name}", type=Path)
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    for name, made, source in (
        ("watch", watch, options.watch),
        ("spoken-digits", digits, options.digits),
        ("vowel", vowel, options.vowel),
    ):
        if source is not None:
            stream, found = io.BytesIO(), made(source)
            np.savez_compressed(stream, x=found["x"], y=found["y"], device=found["device"])
            write_atomic(options.out / f"{name}.npz", stream.getvalue())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
