"""Datasets by their path: what a person's files hold comes out, and what is wrong with them is one sentence."""

import gzip
import io
import os
import struct
import zipfile
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

import kfl
from kfl.cli.split_table import data_line
from kfl.core.errors import ConfigError, DataError, KflError
from kfl.data import dataset_path, load_dataset, short_name, storage
from kfl.data.named import EMNIST
from kfl.data.parquet import Columns, TableSet, on_hub

DRAW = np.random.default_rng(5)
BYTES = DRAW.integers(0, 256, (40, 3, 6, 5), dtype=np.uint8)
LABELS = np.arange(40) % 4
WHO = np.repeat([11, 7, 30, 7], 10)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KFL_CACHE_DIR", str(tmp_path / "cache"))


def encoded(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def shade(index: int) -> np.ndarray:
    return BYTES[index].transpose(1, 2, 0)


def as_one(data: kfl.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """All samples of a dataset, in an order that does not depend on the split."""
    x = np.concatenate([data.train_x, data.test_x]).reshape(len(data.train_y) + len(data.test_y), -1)
    y = np.concatenate([data.train_y, data.test_y])
    order = np.lexsort(x.T)
    return x[order], y[order]


def same_samples(data: kfl.Dataset, x: np.ndarray, y: np.ndarray) -> bool:
    order = np.lexsort(x.reshape(len(x), -1).T)
    found = as_one(data)
    return np.array_equal(found[0], x.reshape(len(x), -1)[order]) and np.array_equal(found[1], y[order])


# ── .npz ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "names",
    [
        ("x", "y", "x_test", "y_test"),
        ("x_train", "y_train", "x_test", "y_test"),
        ("train_images", "train_labels", "test_images", "test_labels"),
        ("X_train", "Y_train", "X_val", "Y_val"),
        ("data.train", "targets.train", "data.test", "targets.test"),
        ("xtrain", "ytrain", "xtest", "ytest"),
    ],
)
def test_arrays_by_the_names_people_give_them(tmp_path, names):
    x, other = DRAW.normal(size=(30, 4, 8)), DRAW.normal(size=(10, 4, 8)).astype(np.float32)
    arrays = [x, LABELS[:30], other, LABELS[30:]]
    np.savez_compressed(tmp_path / "a.npz", **dict(zip(names, arrays, strict=True)))
    for _ in range(2):  # decoded, then from the cache
        data = load_dataset(str(tmp_path / "a.npz"))
        assert data.name == "a" and data.classes == 4 and data.input_shape == (4, 8) and data.note == ""
        assert np.array_equal(data.train_x, x.astype(np.float32)) and np.array_equal(data.test_x, other)
        assert np.array_equal(data.train_y, LABELS[:30]) and np.array_equal(data.test_y, LABELS[30:])
        assert data.scale == 1.0 and data.mean is None, "numbers are taken as they are"
    assert isinstance(data.train_x, np.memmap)


def test_bytes_are_pixels(tmp_path):
    pixels = DRAW.integers(0, 256, (40, 6, 5, 3), dtype=np.uint8)
    np.savez(tmp_path / "color.npz", x=pixels, y=LABELS)
    data = load_dataset(str(tmp_path / "color.npz"))
    assert data.input_shape == (3, 6, 5) and same_samples(data, pixels.transpose(0, 3, 1, 2), LABELS)
    assert data.inputs("train").min() >= 0 and data.inputs("train").max() == 1
    np.savez(tmp_path / "gray.npz", x=pixels[..., 0], y=LABELS, x_test=pixels[:, 1:, :, 1], y_test=LABELS)
    with pytest.raises(DataError, match=r"gray.npz.*training sample has shape \(1, 6, 5\), but .* \(1, 5, 5\)"):
        load_dataset(str(tmp_path / "gray.npz"))


def test_labels_of_all_kinds_become_classes(tmp_path):
    x = DRAW.normal(size=(40, 3))
    for number, (labels, note) in enumerate(
        (
            (LABELS + 1, "Its 4 labels, 1 … 4, are numbered 0 … 3 in order."),
            (LABELS * 10 - 5, "Its 4 labels, -5 … 25, are numbered"),
            (np.array(["bike", "run", "sit", "walk"])[LABELS], ""),
            (LABELS.astype(np.float64)[:, None], ""),
        )
    ):
        data = load_dataset(str(npz(tmp_path / f"{number}.npz", x=x, y=labels)))
        assert same_samples(data, x.astype(np.float32), LABELS) and data.note.startswith(note)


@pytest.mark.parametrize("kind", ["<f8", ">f4", "f2", ">i2", "i1", "?"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_numbers_of_all_kinds_and_orders(tmp_path, kind, order):
    x = np.array(DRAW.integers(0, 2, (40, 3, 5)), dtype=kind, order=order)
    (tmp_path / "file").write_text("where the cache would be")
    path = npz(tmp_path / "a.npz", x=x, y=LABELS, x_test=x[::-1], y_test=LABELS)
    for cache in (tmp_path / "file", tmp_path / "cache"):
        data = load_dataset(str(path), cache_dir=cache)
        assert np.array_equal(data.train_x, x) and np.array_equal(data.test_x, x[::-1])
        assert data.train_x.dtype == np.float32 and data.train_x.flags.c_contiguous


def test_devices_keep_their_names_and_every_one_is_tested(tmp_path):
    x = DRAW.normal(size=(40, 3))
    np.savez(tmp_path / "a.npz", signals=x, activity=LABELS, subject_id=WHO)
    data = load_dataset(f"{tmp_path / 'a.npz'},y=activity")
    assert data.device_names == ("7", "11", "30")
    assert np.bincount(data.train_device).tolist() == [16, 8, 8]
    assert np.bincount(data.test_device).tolist() == [4, 2, 2]
    assert "20% of each device's samples are held out" in data.note
    whose = {tuple(row): who for row, who in zip(x.astype(np.float32).tolist(), WHO, strict=True)}
    for rows, devices in ((data.train_x, data.train_device), (data.test_x, data.test_device)):
        assert [str(whose[tuple(row)]) for row in rows.tolist()] == [data.device_names[k] for k in devices]
    assert "3 devices" in data_line(data)


def test_options_name_arrays_and_unknown_ones_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", a=DRAW.normal(size=(40, 3)), b=LABELS, c=WHO, d_train=LABELS)
    path = tmp_path / "a.npz"
    assert len(load_dataset(f"{path},x=a,y=b,device=c").device_names) == 3
    assert load_dataset(f"{path},x=a,y=d").device_names == ()
    for options, sentence in (
        ("", r"has a \(40, 3\), b \(40,\), c \(40,\), d_train \(40,\), but no inputs of the train set by the name x"),
        (",x=a,y=lable", "but no labels of the train set by the name lable"),
        (",x=a,y=dtrain", r"by the name dtrain \(did you mean d_train\?\)"),
        (",x=a,y=b,device=who", "no ids of devices"),
        (",x=a,shade=b", r"followed by x=…, y=…, device=…, not shade=b"),
    ):
        with pytest.raises(KflError, match=sentence):
            load_dataset(f"{path}{options}")


def npz(path: Path, **arrays) -> Path:
    np.savez(path, **arrays)
    return path


GOOD = {"x": np.ones((6, 2)), "y": np.arange(6) % 2}


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        (GOOD | {"y": np.arange(5)}, "the training set has 6 samples, but 5 labels"),
        (GOOD | {"device": np.arange(7)}, "the training set has 6 samples, but 7 device ids"),
        (GOOD | {"y": np.linspace(0, 1, 6)}, r"labels\[1\] is 0.2, but labels must be integers"),
        (GOOD | {"y": np.eye(6)}, r"labels has shape \(6, 6\), but must be one label per sample"),
        (GOOD | {"x": np.full((6, 2), np.nan)}, r"train_x\[0\] holds NaN or infinity"),
        (GOOD | {"x": np.ones(6)}, r"x has shape \(6,\), but inputs must be \(samples, …\)"),
        (GOOD | {"x": np.array(list("abcdef"))}, "x has type <U1, but inputs must be numbers"),
        (GOOD | {"x": np.ones((6, 0))}, r"x has shape \(6, 0\)"),
        (GOOD | {"y": np.float64(3)}, "y is one value, but must be one for each sample"),
        (GOOD | {"device": np.linspace(0, 1, 6)}, "ids of devices must be integers or strings"),
        (GOOD | {"label": np.arange(6)}, "has y and label, which may each hold the labels: say which by ',y=NAME'"),
        (GOOD | {"x_test": np.ones((2, 2))}, "no labels of the test set"),
        (GOOD | {"x_test": np.ones((2, 3)), "y_test": [0, 1]}, "One training sample has shape"),
        ({"x": np.ones((1, 2)), "y": np.zeros(1, int)}, "1 sample cannot be split"),
        (GOOD | {"device": np.arange(6)}, "Every device has fewer than two samples"),
    ],
)
def test_arrays_that_cannot_be_a_dataset(tmp_path, arrays, sentence):
    path = npz(tmp_path / "a.npz", **arrays)
    for _ in range(2):
        with pytest.raises(DataError, match=sentence) as caught:
            load_dataset(str(path))
        assert "a.npz" in str(caught.value) or "device" in str(caught.value) or "samples" in str(caught.value)


def test_a_truncated_or_odd_archive_is_one_sentence(tmp_path):
    whole = npz(tmp_path / "whole.npz", **GOOD).read_bytes()
    path = tmp_path / "a.npz"
    for content in (b"", b"PK", whole[: len(whole) // 2], whole[:-40], b"x" * 100):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"a.npz cannot be read as .npz"):
            load_dataset(str(path))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"no array")
    with pytest.raises(DataError, match="holds x, which is not an array"):
        load_dataset(str(path))


# ── IDX ──────────────────────────────────────────────────────────────────────


def put_idx(path: Path, values: np.ndarray) -> Path:
    head = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = head + values.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content, 1) if path.suffix == ".gz" else content)
    return path


GREY = BYTES[:, 0]


def put_idx_set(folder: Path, prefix: str = "", test: str = "t10k", zipped: bool = True, first: int = 0) -> None:
    end = ".gz" if zipped else ""
    for split, rows in (("train", slice(0, 30)), (test, slice(30, 40))):
        put_idx(folder / f"{prefix}{split}-images-idx3-ubyte{end}", GREY[rows])
        put_idx(folder / f"{prefix}{split}-labels-idx1-ubyte{end}", LABELS[rows] + first)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_folder_of_idx_files(tmp_path, zipped):
    put_idx_set(tmp_path / "kana", zipped=zipped)
    data = load_dataset(str(tmp_path / "kana"))
    assert data.name == "kana" and data.input_shape == (1, 6, 5) and data.classes == 4
    assert np.array_equal(data.train_x[:, 0], GREY[:30]) and np.array_equal(data.test_x[:, 0], GREY[30:])
    assert data.train_y.tolist() == LABELS[:30].tolist() and data.scale == 1 / 255 and data.mean is None


def test_one_of_several_sets_is_named_by_a_file(tmp_path):
    put_idx_set(tmp_path, "a-", "test")
    put_idx_set(tmp_path, "b-", "test", first=3)
    with pytest.raises(DataError, match="has the IDX files a-… and b-…: name one of the files"):
        load_dataset(str(tmp_path))
    data = load_dataset(str(tmp_path / "b-train-images-idx3-ubyte.gz"))
    assert data.note == "Its 4 labels, 3 … 6, are numbered 0 … 3 in order."
    (tmp_path / "a-train-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match="none with the train labels"):
        load_dataset(str(tmp_path / "a-train-images-idx3-ubyte.gz"))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty, but an IDX file"),
        (b"\0\0\x0d\x03" + bytes(20), "starts with 00 00 0d 03, but an IDX file of bytes"),
        (b"\0\0\x08\x03\0\0", "its header ends after 6 bytes"),
        (struct.pack(">BBBBI", 0, 0, 8, 1, 30) + bytes(30), "has 1 dimensions, but must hold images"),
        (struct.pack(">BBBBIII", 0, 0, 8, 3, 30, 6, 5) + bytes(50), "expected 916 bytes unzipped, found 66"),
        (struct.pack(">BBBBIII", 0, 0, 8, 3, 2**31, 2**31, 5), "must have some, and at most"),
        (struct.pack(">BBBBIII", 0, 0, 8, 3, 29, 6, 5) + bytes(870), "has 29 samples, but 30 labels"),
    ],
)
def test_damaged_idx_files_of_an_unknown_set(tmp_path, content, sentence):
    put_idx_set(tmp_path, zipped=False)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(content)
    with pytest.raises(DataError, match=sentence):
        load_dataset(str(tmp_path))


@pytest.mark.parametrize("below", ["emnist", "emnist/gzip"])
def test_emnist_is_turned_upright_and_counted_from_zero(tmp_path, below):
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (52, 28, 28), dtype=np.uint8)
    labels = np.arange(52) % 26
    for split in ("train", "test"):
        put_idx(tmp_path / below / f"emnist-letters-{split}-images-idx3-ubyte.gz", images.transpose(0, 2, 1))
        put_idx(tmp_path / below / f"emnist-letters-{split}-labels-idx1-ubyte.gz", labels + 1)
    data = load_dataset("emnist-letters", tmp_path)
    assert np.array_equal(data.train_x[:, 0], images) and data.train_y.tolist() == labels.tolist()
    assert data.classes == 26 and data.name == "emnist-letters"
    again = load_dataset(str(tmp_path / below))
    assert np.array_equal(again.train_x, data.train_x) and np.array_equal(again.test_y, data.test_y)
    put_idx(tmp_path / below / "emnist-letters-train-labels-idx1-ubyte.gz", labels + 2)
    with pytest.raises(DataError, match="has value 27 at index 25, but values must be 0 … 26"):
        load_dataset("emnist-letters", tmp_path)
    put_idx(tmp_path / below / "emnist-letters-train-images-idx3-ubyte.gz", images[:, 1:])
    with pytest.raises(DataError, match=r"has dimensions \(52, 27, 28\), but must have \('any', 28, 28\)"):
        load_dataset("emnist-letters", tmp_path)


def test_every_part_of_emnist_names_its_own_files():
    names = [file.name for part in EMNIST.values() for file in part.members.values()]
    assert len(set(names)) == 4 * len(EMNIST)
    (archive,) = EMNIST["letters"].download.files
    assert {f"gzip/{name}.gz" for name in names} <= set(archive.members)


# ── Tables ───────────────────────────────────────────────────────────────────


def table(path: Path, rows, image: str = "image", struct_of_bytes: bool = True, **columns) -> Path:
    cells = [encoded(shade(i)) for i in rows]
    cells = [{"bytes": cell, "path": f"{i}.png"} for i, cell in enumerate(cells)] if struct_of_bytes else cells
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table({image: cells, **columns}), path)
    return path


@pytest.mark.parametrize(
    ("train", "test"),
    [
        (["train.parquet"], "test.parquet"),
        (["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"], "data/valid-00000.parquet"),
        (["train/0000.parquet", "train/0001.parquet"], "test/0000.parquet"),
    ],
)
def test_tables_in_the_layout_of_a_hub(tmp_path, train, test):
    per_file = 30 // len(train)
    for number, name in enumerate(train):
        rows = range(number * per_file, (number + 1) * per_file)
        table(tmp_path / "set" / name, rows, label=LABELS[rows], id=list(rows))
    table(tmp_path / "set" / test, range(30, 40), label=LABELS[30:], id=list(range(10)))
    data = load_dataset(str(tmp_path / "set"))
    assert np.array_equal(data.train_x, BYTES[:30]) and np.array_equal(data.test_x, BYTES[30:])
    assert data.train_y.tolist() == LABELS[:30].tolist() and data.device_names == () and data.note == ""
    inputs = data.inputs("train")
    assert inputs.mean(dim=(0, 2, 3)).abs().max() < 1e-3 and (inputs.std(dim=(0, 2, 3)) - 1).abs().max() < 1e-2


def test_a_single_table_with_writers_is_a_natural_federation(tmp_path):
    path = table(tmp_path / "f.parquet", range(40), character=LABELS, writer_id=[f"w{who}" for who in WHO])
    data = load_dataset(f"{path},y=character")
    assert data.device_names == ("w11", "w30", "w7") and same_samples(data, BYTES, LABELS)
    with pytest.raises(DataError, match=r"has image, character, writer_id, but no labels by the name y or label"):
        load_dataset(str(path))


def test_columns_are_found_or_asked_for(tmp_path):
    fine = table(tmp_path / "c.parquet", range(40), "img", fine_label=LABELS, coarse_label=LABELS // 2)
    assert load_dataset(str(fine)).classes == 4
    assert load_dataset(f"{fine},y=coarse_label").classes == 2
    two = table(tmp_path / "d.parquet", range(40), "photo", a_label=LABELS, b_label=LABELS // 2)
    with pytest.raises(DataError, match="has a_label and b_label, which may each hold the labels"):
        load_dataset(str(two))
    assert load_dataset(f"{two},y=b_label").classes == 2
    with pytest.raises(DataError, match=r"by the name fine_lable \(did you mean fine_label\?\)"):
        load_dataset(f"{fine},y=fine_lable")
    with pytest.raises(DataError, match="labels of type double, but labels must be integers or strings"):
        load_dataset(str(table(tmp_path / "e.parquet", range(4), label=[0.5] * 4)))
    pyarrow.parquet.write_table(pyarrow.table({"a": [1], "label": [1]}), tmp_path / "f.parquet")
    with pytest.raises(DataError, match="has a, label, but no images"):
        load_dataset(str(tmp_path / "f.parquet"))


def test_an_image_that_is_wrong_is_named_by_its_row(tmp_path):
    good = [encoded(shade(i)) for i in range(8)]
    path = tmp_path / "a.parquet"
    for row, cell, sentence in (
        (5, good[5][:40], "row 5: the image cannot be decoded"),
        (6, encoded(shade(6)[:3]), r"row 6: the image has 5×3 pixels, but .*row 0 has 5×6 pixels: .*',size=N'"),
        (2, encoded(np.zeros((6, 5), np.uint16)), "row 2: the image has pixels of the kind I(;16)?, but"),
        (0, encoded(np.zeros((1, 5000), np.uint8)), "row 0: the image has 5000×1 pixels, but must have at most 4096"),
        (3, None, "row 3: image bytes or label are missing"),
    ):
        cells = [*good[:row], cell, *good[row + 1 :]]
        pyarrow.parquet.write_table(pyarrow.table({"image": cells, "label": [0, 1] * 4}), path)
        with pytest.raises(DataError, match=sentence):
            load_dataset(str(path))


def test_grey_images_have_one_channel_and_one_in_shade_makes_all_of_them_so(tmp_path):
    grey = [encoded(image) for image in GREY]
    write = pyarrow.parquet.write_table
    write(pyarrow.table({"image": grey, "label": LABELS}), tmp_path / "a.parquet")
    data = load_dataset(str(tmp_path / "a.parquet"))
    assert data.input_shape == (1, 6, 5) and data.mean is None and same_samples(data, GREY[:, None], LABELS)
    write(pyarrow.table({"image": [*grey[:39], encoded(shade(39))], "label": LABELS}), tmp_path / "b.parquet")
    both = np.concatenate([np.repeat(GREY[:39, None], 3, axis=1), BYTES[39:]])
    assert same_samples(load_dataset(str(tmp_path / "b.parquet")), both, LABELS)


def test_a_named_set_of_tables_is_held_to_what_it_must_be(tmp_path):
    made = TableSet(
        "toy", "Toy, a few images", 4, (3, 6, 5), {"train": 30, "test": 10}, Columns("image", "label"),
        download=on_hub("o/toy/data", "toy", "train.parquet"),
    )  # fmt: skip
    with pytest.raises(DataError, match=r"Toy is not there or not complete: put train\*.parquet and test\*.parquet"):
        made.load(tmp_path, tmp_path / "cache")
    table(tmp_path / "toy" / "train-0.parquet", range(30), label=LABELS[:30])
    assert made.files(tmp_path) == []
    table(tmp_path / "toy" / "test-0.parquet", range(30, 40), label=LABELS[30:])
    assert len(made.files(tmp_path)) == 2
    data = made.load(tmp_path, tmp_path / "cache")
    assert np.array_equal(data.train_x, BYTES[:30]) and data.classes == 4 and len(data.mean) == 3
    for labels, sentence in (
        (LABELS[:29], "has 29 rows, but must have 30"),
        (LABELS[:30] + 1, r"train label\[3\] is 4, but labels must be 0 … 3"),
        (LABELS[:30] // 2, "has no train images of class 2"),
    ):
        table(tmp_path / "toy" / "train-0.parquet", range(len(labels)), label=labels)
        with pytest.raises(DataError, match=sentence):
            made.load(tmp_path, tmp_path / "cache")
    assert made.download.base_url == "https://huggingface.co/datasets/o/toy/resolve/main/data"


# ── Folders of images ────────────────────────────────────────────────────────


def put_images(folder: Path, rows, names=("ant", "bee", "cat", "dog"), kind: str = "png") -> None:
    for i in rows:
        path = folder / names[LABELS[i]] / f"{i:03d}.{kind}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(shade(i), "PNG"))


@pytest.mark.parametrize("test", ["test", "val", "validation"])
def test_folders_with_a_test_set(tmp_path, test):
    put_images(tmp_path / "pets" / "train", range(30))
    put_images(tmp_path / "pets" / test, range(30, 40))
    (tmp_path / "pets" / "readme.txt").write_text("mine")
    data = load_dataset(f"{tmp_path}/pets/")
    order = np.lexsort((np.arange(30), LABELS[:30]))
    assert np.array_equal(data.train_x, BYTES[:30][order]) and np.array_equal(data.train_y, LABELS[:30][order])
    assert data.name == "pets" and len(data.test_y) == 10 and len(data.mean) == 3


def test_folders_of_classes_alone(tmp_path):
    put_images(tmp_path / "pets", range(40))
    data = load_dataset(str(tmp_path / "pets"))
    assert same_samples(data, BYTES, LABELS) and "20% of each class's samples" in data.note
    small = load_dataset(f"{tmp_path / 'pets'},size=4")
    assert small.input_shape == (3, 4, 4)
    for size in ("x", "-3", "0", "5000", "100000"):
        with pytest.raises(ConfigError, match="size"):
            load_dataset(f"{tmp_path / 'pets'},size={size}")


def test_folders_that_are_no_dataset(tmp_path):
    pets = tmp_path / "pets"
    put_images(pets / "train", range(30))
    put_images(pets / "test", range(30, 40), names=("ant", "bee", "cat", "dodo"))
    with pytest.raises(DataError, match="has test images of the class 'dodo', but no training images of it"):
        load_dataset(str(pets))
    (pets / "train" / "ant" / "broken.png").write_bytes(b"\x89PNG nothing")
    (pets / "test" / "dodo").rename(pets / "test" / "dog")
    with pytest.raises(DataError, match=r"ant/broken.png: the image cannot be decoded"):
        load_dataset(str(pets))
    (pets / "train" / "ant" / "broken.png").write_bytes(encoded(shade(0)[:2]))
    with pytest.raises(DataError, match=r"broken.png: the image has 5×2 pixels, but .*ant.*png has 5×6 pixels"):
        load_dataset(str(pets))
    assert load_dataset(f"{pets},size=6").input_shape == (3, 6, 6)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty is empty, which is no dataset: give .npz"):
        load_dataset(str(tmp_path / "empty"))
    npz(tmp_path / "empty" / "a.npz", **GOOD)
    with pytest.raises(DataError, match=r"holds a.npz \(did you mean .*a.npz\?\)"):
        load_dataset(str(tmp_path / "empty"))


# ── Paths ────────────────────────────────────────────────────────────────────


def test_a_path_that_is_not_there(tmp_path, monkeypatch):
    npz(tmp_path / "readings.npz", **GOOD)
    monkeypatch.chdir(tmp_path)
    assert load_dataset("readings.npz").name == "readings", "relative to where one is"
    for name, sentence in (
        ("reading.npz", r"reading.npz does not exist \(did you mean readings.npz\?\)"),
        ("nowhere/readings.npz", "does not exist, nor does nowhere"),
        ("./zzz", r"zzz does not exist in "),
        ("x" * 300 + ".npz", "does not exist|cannot be read"),
        ("readings.xls", r"one of .*, a file or folder, or"),
    ):
        with pytest.raises(KflError, match=sentence):
            load_dataset(name)
    (tmp_path / "notes.txt").write_text("no data")
    with pytest.raises(DataError, match=r"notes.txt is of no format"):
        load_dataset("notes.txt")


def test_a_name_is_never_taken_for_a_folder(tmp_path, monkeypatch):
    (tmp_path / "mnist-5k").mkdir()
    monkeypatch.chdir(tmp_path)
    assert dataset_path("mnist-5k") is None and dataset_path("./mnist-5k") == tmp_path / "mnist-5k"
    kfl.Experiment(dataset="./mnist-5k", devices=3).validate()
    with pytest.raises(ConfigError, match="dataset is 'mnits'"):
        kfl.Experiment(dataset="mnits").validate()
    assert short_name("~/a b/c,d.npz") == "c-d"


def test_what_is_larger_than_memory_goes_through_a_file(tmp_path, monkeypatch):
    x = DRAW.normal(size=(500, 3, 7))
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(500) % 4)
    put_images(tmp_path / "pets", range(40))
    plain = [load_dataset(str(tmp_path / name), cache_dir=tmp_path / "one") for name in ("a.npz", "pets")]
    monkeypatch.setattr(storage, "IN_MEMORY_BYTES", 100)
    mapped = [load_dataset(str(tmp_path / name), cache_dir=tmp_path / "two") for name in ("a.npz", "pets")]
    assert [one.fingerprint() for one in plain] == [two.fingerprint() for two in mapped]
    assert {path.name for path in (tmp_path / "two").iterdir()} == {path.name for path in (tmp_path / "one").iterdir()}


def test_real_files_read_by_path_are_the_named_sets(tmp_path):
    folder = os.environ.get("KFL_DATA_DIR")
    if not folder or not (Path(folder) / "mnist").is_dir():
        pytest.skip("KFL_DATA_DIR has no MNIST")
    named, by_path = load_dataset("mnist", Path(folder)), load_dataset(str(Path(folder) / "mnist"))
    assert named.fingerprint() == by_path.fingerprint()


def test_what_follows_a_path_and_functions_that_do_not_fit_are_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    np.savez("readings.npz", x=DRAW.normal(size=(40, 3)), y=LABELS)
    np.savez("one.npz", x=np.ones((1, 3)), y=[0])
    np.savez("fractions.npz", x=DRAW.normal(size=(40, 3)), y=LABELS, device=DRAW.normal(size=40))
    (tmp_path / "my_readings.py").write_text("def load(folder):\n    return folder\n")
    for text, sentence in {
        "": r"dataset is '', but must be one of mnist-5k, ",
        "readings.npz,device": r"'readings.npz,device', but must be a path, or one with options such as read",
        "./readings.npz,": r"'./readings.npz,', but must be a path, or one with options such as ./readings.npz,y=",
        "my_readings:load": r"'my_readings:load', but must be callable without arguments \(missing .*'folder'\)",
        "one.npz": r"one.npz: 1 sample cannot be split",
        "fractions.npz": r"fractions.npz: train_device has type float64",
    }.items():
        with pytest.raises(KflError, match=sentence):
            load_dataset(text)
