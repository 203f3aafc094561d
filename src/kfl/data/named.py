"""Sets of a known format that have names: one entry each, and a line in `DATASETS`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kfl.data.idx import IdxFile, IdxSet
from kfl.data.parquet import Columns, TableSet, on_hub
from kfl.data.source import Download, RemoteFile


def like_mnist(
    name: str,
    description: str,
    base_url: str,
    zipped: Sequence[tuple[str, int]],
    unzipped: Sequence[str] = ("", "", "", ""),
) -> IdxSet:
    """A set with the files and sizes of MNIST: images and labels for training, then for tests.

    `zipped` is md5 and size of each file as it is fetched, `unzipped` the md5 of its content: by that one, a file that
    was compressed again is still known.
    """
    files = {
        "train_x": IdxFile("train-images-idx3-ubyte", (60_000, 28, 28), unzipped[0]),
        "train_y": IdxFile("train-labels-idx1-ubyte", (60_000,), unzipped[1], 9),
        "test_x": IdxFile("t10k-images-idx3-ubyte", (10_000, 28, 28), unzipped[2]),
        "test_y": IdxFile("t10k-labels-idx1-ubyte", (10_000,), unzipped[3], 9),
    }
    remote = [
        RemoteFile(f"{file.name}.gz", md5, size) for file, (md5, size) in zip(files.values(), zipped, strict=True)
    ]
    # Next to others in the data folder itself only MNIST may be: its files carry no name of their own.
    download = Download(base_url, name, tuple(remote))
    return IdxSet(name, description, 10, files, alone=name != "mnist", download=download)


MNIST = like_mnist(
    "mnist",
    "MNIST, 60,000 + 10,000 digits of 28×28 pixels",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    [
        ("f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
        ("d53e105ee54ea40749a09fcbcd1e9432", 28_881),
        ("9fb629c4189551a2d022fa330f9573f3", 1_648_877),
        ("ec29112dd5afa0611ce80d1b7f02629c", 4_542),
    ],
    [
        "6bbc9ace898e44ae57da46a324031adb",
        "a25bea736e30d166cdddb491f175f624",
        "2646ac647ad5339dbf082846283269ea",
        "27ae3e4e09519cfbb04c329615203637",
    ],
)
FASHION_MNIST = like_mnist(
    "fashion-mnist",
    "Fashion-MNIST, 60,000 + 10,000 clothes of 28×28 pixels",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    [
        ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
        ("25c81989df183df01b3e8a0aad5dffbe", 29_515),
        ("bef4ecab320f06d8554ea6380940ec79", 4_422_102),
        ("bb300cfdad3c16e7a12a480ee83cd310", 5_148),
    ],
)
KMNIST = like_mnist(
    "kmnist",
    "Kuzushiji-MNIST, 60,000 + 10,000 Japanese characters of 28×28 pixels",
    "http://codh.rois.ac.jp/kmnist/dataset/kmnist/",
    [
        ("bdb82020997e1d708af4cf47b453dcf7", 18_165_135),
        ("e144d726b3acfaa3e44228e80efcd344", 29_497),
        ("5c965bf0a639b31b8f53240b1b52f4d7", 3_041_136),
        ("7320c461ea6c1c855c0b718fb2a4b134", 5_120),
    ],
)

EMNIST_PARTS = {"balanced": 47, "letters": 26, "digits": 10, "byclass": 62, "bymerge": 47, "mnist": 10}
"""The six parts of EMNIST and their classes."""


def _emnist_files(part: str) -> dict[str, IdxFile]:
    most = EMNIST_PARTS[part] if part == "letters" else EMNIST_PARTS[part] - 1
    return {
        f"{split}_{key}": IdxFile(f"emnist-{part}-{split}-{what}", shape, largest=largest)
        for split in ("train", "test")
        for key, what, shape, largest in (
            ("x", "images-idx3-ubyte", (0, 28, 28), 255),
            ("y", "labels-idx1-ubyte", (0,), most),
        )
    }


EMNIST_ARCHIVE = RemoteFile(
    "gzip.zip",
    "58c8d27c78d21e728a6bc7b3cc06412e",
    members={f"gzip/{file.name}.gz": None for part in EMNIST_PARTS for file in _emnist_files(part).values()},
)
"""All parts are in one archive, so that one download is enough."""


def _emnist(part: str, what: str) -> IdxSet:
    return IdxSet(
        f"emnist-{part}",
        f"EMNIST {part}, {what} of 28×28 pixels in {EMNIST_PARTS[part]} classes",
        EMNIST_PARTS[part],
        _emnist_files(part),
        download=Download("https://biometrics.nist.gov/cs_links/EMNIST/", "emnist", (EMNIST_ARCHIVE,)),
        first_label=1 if part == "letters" else 0,
        transposed=True,
        below=("gzip",),
    )


EMNIST: Mapping[str, IdxSet] = {
    "balanced": _emnist("balanced", "handwritten digits and letters, equally many of each"),
    "letters": _emnist("letters", "handwritten letters, small and capital together"),
    "digits": _emnist("digits", "handwritten digits"),
    "byclass": _emnist("byclass", "handwritten digits and letters"),
}

CIFAR100 = TableSet(
    "cifar100",
    "CIFAR-100, 50,000 + 10,000 color images of 32×32 pixels in 100 classes",
    100,
    (3, 32, 32),
    {"train": 50_000, "test": 10_000},
    Columns("img", "fine_label"),
    download=on_hub(
        "uoft-cs/cifar100/cifar100", "cifar100", "train-00000-of-00001.parquet", "test-00000-of-00001.parquet"
    ),
)
SVHN = TableSet(
    "svhn",
    "Street View House Numbers, 73,257 + 26,032 color digits of 32×32 pixels",
    10,
    (3, 32, 32),
    {"train": 73_257, "test": 26_032},
    Columns("image", "label"),
    download=on_hub(
        "ufldl-stanford/svhn/cropped_digits", "svhn", "train-00000-of-00001.parquet", "test-00000-of-00001.parquet"
    ),
)
TINY_IMAGENET = TableSet(
    "tiny-imagenet",
    "Tiny ImageNet, 100,000 + 10,000 color images of 64×64 pixels in 200 classes",
    200,
    (3, 64, 64),
    {"train": 100_000, "test": 10_000},
    Columns("image", "label"),
    download=on_hub(
        "zh-plus/tiny-imagenet/data",
        "tiny-imagenet",
        "train-00000-of-00001-1359597a978bc4fa.parquet",
        "valid-00000-of-00001-70d52db3c749a935.parquet",
    ),
)
FEMNIST = TableSet(
    "femnist",
    "FEMNIST, handwritten digits and letters of 28×28 pixels with their writers: for --split natural",
    62,
    (1, 28, 28),
    {"train": 0},
    Columns("image", "character", "writer_id"),
    download=on_hub("flwrlabs/femnist/data", "femnist", "train-00000-of-00001.parquet"),
)
