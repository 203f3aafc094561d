"""States of devices in one safetensors file, written as a stream: no second copy in memory, one pass over the numbers.

A checkpoint may write hundreds of megabytes while a run waits, so this is the one place where the format is written
by hand: the length of a header, the header in JSON (name, type, shape, place of each array), then the arrays. Reading
goes through the package safetensors.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kfl.core.files import atomic_file

if TYPE_CHECKING:
    from torch import Tensor

    from kfl.models import State

TYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
"""Types of PyTorch and their names in the format."""
BATCH_BYTES = 2**28
"""What comes over from a GPU at a time."""


def write_rows(path: Path, rows: Mapping[int, State]) -> tuple[str, int]:
    """Write the states, all of them or nothing; the checksum and the size of the file."""
    arrays = {f"{device}/{name}": value for device, row in rows.items() for name, value in row.items()}
    header, place = {}, 0
    for name, value in arrays.items():
        header[name] = {
            "dtype": TYPES[str(value.dtype).removeprefix("torch.")],
            "shape": list(value.shape),
            "data_offsets": [place, place + value.nbytes],
        }
        place += value.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    start = struct.pack("<Q", len(text)) + text
    total = zlib.crc32(start)
    with atomic_file(path) as file:
        file.write(start)
        for value in _on_cpu(list(arrays.values())):
            view = _bytes(value)
            file.write(view)
            total = zlib.crc32(view, total)
    return f"crc32 {total:08x}", len(start) + place


def rows_sum(data: bytes) -> str:
    """The checksum of such a file."""
    return f"crc32 {zlib.crc32(data):08x}"


def read_rows(data: bytes) -> dict[int, State]:
    """The states in such a file; ValueError for anything else."""
    from safetensors.torch import load

    rows: dict[int, State] = {}
    try:
        for key, value in load(data).items():
            device, _, name = key.partition("/")
            rows.setdefault(int(device), {})[name] = value
    except Exception as problem:  # safetensors raises its own errors for content that is not safetensors
        raise ValueError(f"rows cannot be read, {problem}") from problem
    return rows


def _on_cpu(arrays: list[Tensor]) -> Iterator[Tensor]:
    """The arrays in the CPU's memory; those of a GPU come over in batches, because many small copies take long."""
    import torch

    while arrays:
        first = arrays[0]
        batch, size = 1, first.nbytes
        if first.device.type != "cpu":
            while batch < len(arrays) and size < BATCH_BYTES and arrays[batch].dtype == first.dtype:
                size += arrays[batch].nbytes
                batch += 1
        together, arrays = arrays[:batch], arrays[batch:]
        if batch == 1:
            yield first.cpu()
            continue
        whole = torch.cat([value.reshape(-1) for value in together]).cpu()
        yield from whole.split([value.numel() for value in together])


def _bytes(value: Tensor) -> memoryview:
    """The array's own memory; only what is not contiguous is copied."""
    import torch

    flat = value.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")
