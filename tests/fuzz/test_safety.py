"""Untrusted files: nothing in them is executed, no path leads out, no size is believed before it is checked."""

import ast
import contextlib
import gzip
import hashlib
import io
import json
import logging
import os
import pickle
import shutil
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import kfl
from kfl.core.errors import DataError, KflError, RunFolderError, StoppedError
from kfl.data import load_dataset
from kfl.data.idx import IdxFile, read_idx
from kfl.data.parquet import read_table
from kfl.data.storage import Decoded, cached
from kfl.data.untrusted import read_npz
from kfl.export import FinishedRun
from kfl.runfolder import RunReader
from kfl.runfolder._tensors import rows_sum
from tests.reference.runs import SMALL, data, difference

SOURCE = Path(kfl.__file__).parent
TINY = replace(SMALL, rounds=6, devices=4)


class Bomb:
    """Unpickled, it makes a folder: code has run."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def bomb(tmp_path):
    """A payload, and in the end the proof that it never went off. That it would is shown first."""
    proof = tmp_path / "proof"
    pickle.loads(pickle.dumps(Bomb(proof)))
    assert proof.exists(), "the payload works"
    mark = tmp_path / "executed"
    yield Bomb(mark)
    assert not mark.exists(), "code in a file was executed"


def npy(value) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array([value], dtype=object), allow_pickle=True)
    return buffer.getvalue()


def npz(**values) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **values)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    base = tmp_path_factory.mktemp("safety")
    kfl.run(TINY, base / "whole", dataset=data())
    answers = iter([False, False, True])
    with pytest.raises(StoppedError):
        kfl.run(TINY, base / "stopped", dataset=data(), checkpoint_s=0.0, should_stop=lambda: next(answers))
    return base


def replace_in_checkpoints(folder: Path, kind: str, content: bytes) -> None:
    """Put other content into the checkpoints' files, with checksums that fit: an attacker can compute them too."""
    state = folder / "state"
    for path in state.glob(f"{kind}-*"):
        path.write_bytes(content)
    for path in state.glob("point-*"):
        point = json.loads(json.loads(path.read_text())["point"])
        names = [name for name in point["sums"] if name.startswith(kind)]
        total = rows_sum(content) if kind == "rows" else hashlib.blake2b(content, digest_size=16).hexdigest()
        point["sums"] |= dict.fromkeys(names, total)
        body = json.dumps(point, sort_keys=True)
        path.write_text(json.dumps({"sum": hashlib.blake2b(body.encode(), digest_size=16).hexdigest(), "point": body}))


def huge_npy(count: int = 2**45) -> bytes:
    """A header that promises 2^48 bytes."""
    head = f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({count},), }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + b"12345678"


def zipped(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["rest", "rows"])
@pytest.mark.parametrize("payload", ["pickle", "torch", "objects", "huge", "lying", "empty"])
def test_a_checkpoint_is_only_numbers(stopped, tmp_path, bomb, kind, payload, caplog):
    content = {
        "pickle": pickle.dumps(bomb),
        "torch": _torch_pickle(bomb),
        "objects": zipped(**{"taken": npy(bomb)}),
        "huge": zipped(taken=huge_npy()),
        "lying": struct.pack("<Q", 2**60) + b'{"0/x":{"dtype":"F32","shape":[9999999999],"data_offsets":[0,4]}}1234',
        "empty": b"",
    }[payload]
    folder = tmp_path / "run"
    shutil.copytree(stopped / "stopped", folder)
    replace_in_checkpoints(folder, kind, content)
    with caplog.at_level(logging.WARNING, logger="kfl"):
        kfl.resume(folder, dataset=data())
    assert caplog.text.count("is damaged") == 2
    assert difference(stopped / "whole", folder) is None, "played again from the start"


def _torch_pickle(value) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def header(text: str, rest: bytes = b"1234") -> bytes:
    return struct.pack("<Q", len(text)) + text.encode() + rest


@pytest.mark.parametrize("payload", ["pickle", "long", "outside", "overlap", "garbage", "deep"])
def test_a_model_file_is_only_numbers(stopped, tmp_path, bomb, payload):
    content = {
        "pickle": _torch_pickle(bomb),
        "long": header('{"x":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}'),
        "outside": header('{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'),
        "overlap": header('{"x":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}}'),
        "garbage": struct.pack("<Q", 2**62) + b"{}",
        "deep": header("[" * 100_000),
    }[payload]
    folder = tmp_path / "run"
    shutil.copytree(stopped / "whole", folder)
    path = next((folder / "models").iterdir())
    device = int(path.stem.removeprefix("device-"))
    path.write_bytes(content)
    with pytest.raises(RunFolderError, match="is damaged"):
        RunReader(folder).model(device)


@pytest.mark.parametrize("payload", ["objects", "huge", "pickle"])
def test_the_knowledge_of_a_finished_run_is_only_numbers(stopped, tmp_path, bomb, payload):
    folder = tmp_path / "run"
    shutil.copytree(stopped / "whole", folder)
    content = {
        "objects": zipped(knowledge=npy(bomb)),
        "huge": zipped(knowledge=huge_npy()),
        "pickle": pickle.dumps(bomb),
    }
    (folder / "server.npz").write_bytes(content[payload])
    device = int(next((folder / "models").iterdir()).stem.removeprefix("device-"))
    with pytest.raises(KflError, match="knowledge"):
        FinishedRun.open(folder).weights(device)


def test_a_cached_array_is_only_numbers_and_lies_in_the_cache(tmp_path, bomb):
    source = tmp_path / "source"
    source.write_bytes(b"x")
    decoded = Decoded({"x": np.arange(5)}, "")
    cached("toy", [source], lambda: decoded, tmp_path / "cache")
    entry = next((tmp_path / "cache").iterdir())
    for content in (npy(bomb), pickle.dumps(bomb), huge_npy()):
        (entry / "x.npy").write_bytes(content)
        found = cached("toy", [source], lambda: decoded, tmp_path / "cache")
        assert np.array_equal(found.arrays["x"], np.arange(5))
        del found
    np.save(tmp_path / "secret.npy", np.arange(3))
    index = json.loads((entry / "index.json").read_text())
    index["crc32"] = {"../../secret": 0}
    (entry / "index.json").write_text(json.dumps(index))
    assert list(cached("toy", [source], lambda: decoded, tmp_path / "cache").arrays) == ["x"]


def test_an_image_in_a_table_is_only_an_image(tmp_path, bomb):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "t.parquet"
    parquet.write_table(arrow.table({"img": [pickle.dumps(bomb)], "label": [0]}), path)
    with pytest.raises(DataError, match="row 0"):
        read_table([path], tmp_path, shape=(3, 8, 8))
    path.write_bytes(pickle.dumps(bomb))
    with pytest.raises(DataError, match="cannot be read as parquet"):
        read_table([path], tmp_path, shape=(3, 8, 8))


EPS = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 8 8
%%EndComments
8 8 scale 8 8 8 [8 0 0 -8 0 8] {<00>} image
showpage
%%EOF
"""


def program(folder: Path, name: str) -> Path:
    """A program of this name that leaves a mark when it is started; the mark."""
    mark = folder / f"{name}-was-started"
    (folder / name).write_text(f"#!/bin/sh\necho > '{mark}'\n")
    (folder / name).chmod(0o755)
    return mark


@pytest.mark.parametrize("where", ["table", "folder"])
def test_an_image_starts_no_program(tmp_path, monkeypatch, where):
    """Pillow hands EPS to Ghostscript, by its first bytes and whatever the file is called."""
    from PIL import EpsImagePlugin, Image

    mark = program(tmp_path, "gs")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # Pillow looks for it once in a process
    with Image.open(io.BytesIO(EPS)) as image, contextlib.suppress(OSError):
        image.load()
    assert mark.exists()  # so this is a trap that works
    mark.unlink()
    if where == "table":
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        path = tmp_path / "t.parquet"
        parquet.write_table(arrow.table({"img": [EPS] * 4, "label": [0, 1, 0, 1]}), path)
    else:
        path = tmp_path / "photos"
        for name in ("ant", "bee"):
            (path / name).mkdir(parents=True)
            (path / name / "one.png").write_bytes(EPS)
    with pytest.raises(DataError, match=r"not a PNG( or JPEG)? image"):
        load_dataset(str(path), cache_dir=tmp_path / "cache")
    assert not mark.exists()


@pytest.mark.parametrize("kind", ["TIFF", "GIF", "WEBP", "ICO", "PCX", "TGA", "SGI"])
def test_a_table_holds_png_and_jpeg_and_nothing_else(tmp_path, kind):
    from PIL import Image

    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    out = io.BytesIO()
    Image.new("RGB", (16, 16)).save(out, kind)
    path = tmp_path / "t.parquet"
    parquet.write_table(arrow.table({"img": [out.getvalue()], "label": [0]}), path)
    with pytest.raises(DataError, match="row 0: the image cannot be decoded, it is not a PNG or JPEG image"):
        read_table([path], tmp_path)


def test_an_image_that_unpacks_to_gigabytes_is_refused_unread(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "t.parquet"
    parquet.write_table(arrow.table({"img": [bytes(300 * 2**20)], "label": [0]}), path, compression="zstd")
    assert path.stat().st_size < 10**6
    with pytest.raises(DataError, match="1 images unpack to 314,"):  # said from the file's own index
        read_table([path], tmp_path)


def test_an_npz_dataset_is_only_numbers(tmp_path, bomb):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.array([[bomb]], dtype=object), y=np.arange(1))
    with pytest.raises(DataError, match="holds x, which has Python objects"):
        load_dataset(str(path), cache_dir=tmp_path / "cache")
    for content in (npy(bomb), pickle.dumps(bomb)):
        path.write_bytes(zipped(x=content, y=content))
        with pytest.raises(DataError, match="holds x"):
            load_dataset(str(path), cache_dir=tmp_path / "cache")


def test_sizes_in_an_npz_dataset_are_not_believed(tmp_path):
    """A header that promises more than there is, and an archive of a gigabyte of nothing."""
    path = tmp_path / "a.npz"
    nothing = tmp_path / "nothing.npz"
    with (
        zipfile.ZipFile(nothing, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("x.npy", "w", force_zip64=True) as x,
    ):
        np.lib.format.write_array_header_1_0(x, {"descr": "|u1", "fortran_order": False, "shape": (2**30 + 2**24, 1)})
        for _ in range(2**6 + 1):
            x.write(bytes(2**24))
    for content in (zipped(x=huge_npy(), y=huge_npy()), zipped(x=huge_npy(2**62), y=huge_npy()), nothing.read_bytes()):
        path.write_bytes(content)

        def read():
            with pytest.raises(DataError, match=r"declares the shape|which no real data does"):
                load_dataset(str(path), cache_dir=tmp_path / "cache")

        assert peak_mb(read) < 16


def peak_mb(action) -> float:
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("zip_it", [False, True], ids=["plain", "gzip"])
def test_an_idx_header_is_not_believed(tmp_path, zip_it):
    """A header that promises 2^31 images, and a gzip file that unpacks to a gigabyte."""
    file = IdxFile("d", (10, 28, 28), "")
    lie = struct.pack(">BBBBIII", 0, 0, 8, 3, 2**31, 28, 28)
    path = tmp_path / ("d.gz" if zip_it else "d")
    if zip_it:
        with gzip.open(path, "wb", compresslevel=1) as out:
            out.write(file.header)
            for _ in range(256):
                out.write(bytes(2**22))
    else:
        path.write_bytes(lie + bytes(10))

    def read():
        with pytest.raises(DataError, match=r"dimensions|expected"):
            read_idx(path, file)

    assert peak_mb(read) < 16


def test_sizes_in_an_npz_are_checked_before_memory_is_taken():
    for content in (zipped(a=huge_npy()), zipped(a=huge_npy(2**62)), b"PK", npz(a=np.arange(3))[:-30]):

        def read(content=content):
            with pytest.raises(ValueError, match=r"declares|npz"):
                read_npz(content)

        assert peak_mb(read) < 16
    buffer = io.BytesIO()
    np.savez_compressed(buffer, a=np.zeros(10**7))
    with pytest.raises(ValueError, match="larger unpacked"):
        read_npz(buffer.getvalue())
    back = read_npz(npz(a=np.asfortranarray(np.arange(6.0).reshape(2, 3)), b=np.array(4), c=np.array([True])))
    assert back["a"].tolist() == [[0, 1, 2], [3, 4, 5]] and back["b"] == 4 and back["c"].dtype == bool


def test_reading_a_config_imports_nothing_it_names_as_data_or_model(tmp_path):
    """`package.module:function` is the one way a config runs code, and only when the run is built."""
    (tmp_path / "evil.py").write_text("import pathlib; pathlib.Path('executed').mkdir()\ndef load(): ...\n")
    code = 'import kfl; e = kfl.Experiment.from_toml(\'dataset = "evil:load"\\nmodel = "evil:load"\'); e.validate()'
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "executed").exists()


FORBIDDEN_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}


def dangers(tree: ast.AST) -> list[str]:
    """What in a module could execute a file: imports, calls, and loaders without their safe option."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found += [name for name in names if name.split(".")[0] in FORBIDDEN_MODULES]
        if not isinstance(node, ast.Call):
            continue
        called, options = node.func, {option.arg: ast.unparse(option.value) for option in node.keywords}
        if isinstance(called, ast.Name) and called.id in FORBIDDEN_CALLS:
            found.append(ast.unparse(node))
        if isinstance(called, ast.Attribute) and called.attr == "load":
            owner = ast.unparse(called.value)
            unsafe_torch = owner == "torch" and options.get("weights_only") != "True"
            unsafe_numpy = owner in ("np", "numpy") and options.get("allow_pickle") != "False"
            found += [ast.unparse(node)] * (unsafe_torch or unsafe_numpy)
    return found


def test_no_module_has_the_means_to_execute_a_file():
    evil = "import pickle, numpy as np\neval('1')\nnp.load('x')\ntorch.load('x', weights_only=False)"
    assert len(dangers(ast.parse(evil))) == 4, "it would notice"
    packages = [SOURCE, SOURCE.parent / "kfl_fleet"]
    modules = [path for package in packages for path in package.rglob("*.py")]
    assert len(modules) > 100
    found = {path.name: bad for path in modules if (bad := dangers(ast.parse(path.read_text(encoding="utf-8"))))}
    assert not found
