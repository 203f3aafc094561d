"""Data files with one thing wrong: read as they were meant, or refused in one sentence; never as something else."""

import gzip
import hashlib
import io
import json
import random

import numpy as np
import pytest

from kfl.core.errors import DataError, KflError
from kfl.data import Dataset, load_dataset
from kfl.data.idx import IdxFile, read_idx
from kfl.data.mnist5k import _csv_path
from kfl.data.parquet import read_table
from kfl.data.storage import Decoded, cached

CASES = 300


@pytest.fixture(scope="module")
def digits():
    """Real digits, as an IDX file of the right size and checksum."""
    rows = gzip.decompress(_csv_path().read_bytes()).split(b"\n")[:20]
    values = np.array([row.split(b",")[:-1] for row in rows], dtype=np.uint8)
    values = values.reshape(20, 28, 28)
    file = IdxFile("digits", (20, 28, 28), "")
    content = file.header + values.tobytes()
    return IdxFile("digits", (20, 28, 28), hashlib.md5(content).hexdigest()), content, values


@pytest.mark.parametrize("zipped", [False, True], ids=["plain", "gzip"])
def test_idx_files(digits, zipped, mutated, judged, tmp_path):
    file, content, values = digits
    whole = gzip.compress(content) if zipped else content
    path = tmp_path / ("digits.gz" if zipped else "digits")
    draw = random.Random(6)
    refused = 0
    for _ in range(CASES):
        path.write_bytes(broken := mutated(whole, draw))
        found = judged(lambda: read_idx(path, file))
        refused += isinstance(found, DataError)
        assert isinstance(found, DataError) or np.array_equal(found, values)
        assert path.read_bytes() == broken
    assert refused > CASES / 2


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Thirty small images in a parquet file, half of them JPEG."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    image = pytest.importorskip("PIL.Image")
    draw = np.random.default_rng(0)
    cells = []
    for number in range(30):
        buffer = io.BytesIO()
        pixels = draw.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        image.fromarray(pixels).save(buffer, format="JPEG" if number % 2 else "PNG")
        cells.append({"bytes": buffer.getvalue(), "path": None})
    path = tmp_path_factory.mktemp("pictures") / "train.parquet"
    parquet.write_table(arrow.table({"img": cells, "label": list(range(30))}), path)
    return path


@pytest.mark.filterwarnings("ignore")  # pillow warns of odd images, which are refused or not
def test_parquet_files(pictures, mutated, judged, tmp_path):
    draw, whole = random.Random(7), pictures.read_bytes()
    path = tmp_path / "train.parquet"
    refused = 0
    for _ in range(CASES):
        path.write_bytes(broken := mutated(whole, draw))
        found = judged(lambda: read_table([path], tmp_path, shape=(3, 8, 8), rows=30))
        refused += isinstance(found, KflError)
        if not isinstance(found, KflError):
            assert found.x.shape == (30, 3, 8, 8) and found.x.dtype == np.uint8
            assert found.y.shape == (30,)
        assert path.read_bytes() == broken
    assert refused > CASES / 10


@pytest.fixture
def no_cache(tmp_path_factory):
    """A cache folder that cannot be made, so that every file is read."""
    path = tmp_path_factory.mktemp("none") / "file"
    path.write_text("in the way")
    return path


def whole_npz(people: bool) -> tuple[bytes, np.ndarray]:
    x, buffer = np.random.default_rng(0).normal(size=(20, 2, 3)).astype(np.float32), io.BytesIO()
    more = {"device": np.arange(20) // 5} if people else {}
    (np.savez_compressed if people else np.savez)(buffer, x=x, y=np.arange(20) % 2, **more)
    return buffer.getvalue(), x


@pytest.mark.parametrize("people", [False, True], ids=["stored", "compressed"])
def test_npz_files(people, mutated, judged, tmp_path, no_cache):
    whole, x = whole_npz(people)
    draw, path, refused = random.Random(10), tmp_path / "a.npz", 0
    for _ in range(CASES):
        path.write_bytes(broken := mutated(whole, draw))
        found = judged(lambda: load_dataset(str(path), cache_dir=no_cache))
        refused += isinstance(found, KflError)
        if not isinstance(found, KflError):  # a checksum covers what an archive holds, not all it says about it
            assert found.train_y.min() >= 0 and len(found.train_y) == len(found.train_x)
            assert set(found.train_x.reshape(-1).tolist()) <= set(x.reshape(-1).tolist())
        assert path.read_bytes() == broken
    assert refused > CASES / 2


def test_idx_folders_of_unknown_sets(digits, mutated, judged, tmp_path, no_cache):
    _, content, values = digits
    labels = IdxFile("l", (20,)).header + bytes(range(10)) * 2
    draw, refused = random.Random(11), 0
    for _ in range(CASES):
        images, tags = (mutated(content, draw), labels) if draw.random() < 0.5 else (content, mutated(labels, draw))
        (tmp_path / "train-images-idx3-ubyte").write_bytes(images)
        (tmp_path / "train-labels-idx1-ubyte").write_bytes(tags)
        found = judged(lambda: load_dataset(str(tmp_path), cache_dir=no_cache))
        refused += isinstance(found, KflError)
        if not isinstance(found, KflError):
            assert len(found.train_y) + len(found.test_y) == len(values)
    assert refused > CASES / 4


@pytest.mark.filterwarnings("ignore")  # pillow warns of odd images, which are refused or not
def test_folders_of_images(mutated, judged, tmp_path, no_cache):
    image = pytest.importorskip("PIL.Image")
    for number in range(8):
        path = tmp_path / "set" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (6, 6, 3), dtype=np.uint8)
        image.fromarray(pixels).save(path, format=("PNG", "BMP", "GIF", "TIFF")[number // 2])
    draw, refused = random.Random(12), 0
    for _ in range(CASES):
        path = draw.choice(sorted((tmp_path / "set").rglob("*.png")))
        whole = path.read_bytes()
        path.write_bytes(mutated(whole, draw))
        found = judged(lambda: load_dataset(str(tmp_path / "set"), cache_dir=no_cache))
        refused += isinstance(found, KflError)
        assert isinstance(found, KflError) or found.input_shape == (3, 6, 6)
        path.write_bytes(whole)
    assert refused > CASES / 5


def test_a_damaged_cache_is_made_again(mutated, judged, tmp_path):
    source = tmp_path / "source"
    source.write_bytes(b"x")
    arrays = {"x": np.arange(60, dtype=np.uint8).reshape(5, 3, 4), "y": np.arange(5)}
    decoded = Decoded(arrays, "a note")

    def read():
        return cached("toy", [source], lambda: decoded, tmp_path / "cache")

    read()
    draw = random.Random(8)
    for _ in range(CASES):
        path = draw.choice(sorted((tmp_path / "cache").rglob("*.*")))
        path.write_bytes(mutated(path.read_bytes(), draw))
        found = judged(read)
        assert all(np.array_equal(found.arrays[name], arrays[name]) for name in arrays)
        assert {name: value.dtype for name, value in found.arrays.items()} == {n: v.dtype for n, v in arrays.items()}
        del found
        for leftover in (tmp_path / "cache").rglob("*"):
            if leftover.is_file():
                leftover.unlink()
        read()


STRANGE = (np.nan, np.inf, -1, 3.5, 10**18, "a", None, b"x", 1j, np.datetime64("2020"), [], [1, 2], {})


def test_arrays_of_all_kinds(judged):
    draw = random.Random(9)
    made = 0
    for _ in range(CASES):
        x = np.arange(40.0).reshape(20, 2).tolist()
        y = [k % 3 for k in range(20)]
        way = draw.randrange(4)
        if way == 0:
            x[draw.randrange(20)][draw.randrange(2)] = draw.choice(STRANGE)
        elif way == 1:
            y[draw.randrange(20)] = draw.choice(STRANGE)
        elif way == 2:
            x[draw.randrange(20)] = draw.choice(STRANGE)
        else:
            del (x if draw.random() < 0.5 else y)[draw.randrange(20) :]
        found = judged(lambda x=x, y=y: Dataset.from_arrays(x, y))
        if not isinstance(found, KflError):
            made += 1
            assert np.isfinite(found.train_x).all() and found.train_y.min() >= 0
    assert made > 5


def test_json_beside_the_arrays_may_be_anything(judged, tmp_path):
    source = tmp_path / "source"
    source.write_bytes(b"x")
    decoded = Decoded({"x": np.arange(4)}, "")

    def read():
        return cached("toy", [source], lambda: decoded, tmp_path / "cache")

    read()
    index = next((tmp_path / "cache").rglob("index.json"))
    for value in (
        1,
        [],
        {},
        None,
        {"crc32": 3},
        {"crc32": {"../../x": 1}, "note": ""},
        {"crc32": {"x": "a"}, "note": ""},
    ):
        index.write_text(json.dumps(value))
        assert np.array_equal(judged(read).arrays["x"], np.arange(4))
