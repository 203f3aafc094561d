"""Device states as safetensors: plain named arrays, which never execute code when read.

Two layouts. At the end of a run, the folder `models/` has one file per device that ever trained and keeps anything
between rounds (federated averaging keeps nothing), or where these are more than a thousand, one per thousand of them;
any other device is still its seed. A checkpoint holds the states
of many devices in one file. It may write hundreds of megabytes while a run waits, so this is the one place where the
format is written directly, as a stream: the length of the header, the header in JSON (name, type, shape and offsets of
each array), then the arrays. No second copy in memory, one pass over the numbers. Reading always goes through the
package safetensors.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kfl.core.errors import KflError, RunFolderError
from kfl.core.files import Folder
from kfl.runfolder._files import MODELS, MOST_ARRAYS

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
"""PyTorch types and their names in the format."""
MOST_FILES = 1000
"""Models of at most so many devices are a file each at the end of a run; of more, some are in one file."""
IN_A_PACK = 1000
"""Devices whose models are in one file then."""
BATCH_BYTES = 2**28
"""Bytes copied from a GPU at a time."""


def state_path(run: Path, device: int) -> Path:
    """The file of a device's state in a run folder.

    >>> state_path(Path("runs/mine"), 12).as_posix()
    'runs/mine/models/device-00012.safetensors'
    """
    return run / MODELS / f"{device_name(device)}.safetensors"


def device_name(device: int) -> str:
    """The name of a device's files."""
    return f"device-{device:05d}"


def write_states(run: Path, states: Mapping[int, State]) -> None:
    """Write every state that holds anything, many of them in packs; each file is whole or not there."""
    held = sorted(device for device, state in states.items() if state)
    with Folder(run) as whole, whole.make(MODELS) as folder:
        if len(held) <= MOST_FILES:
            for device in held:
                folder.write(state_path(run, device).name, as_safetensors(states[device]))
            return
        for start in range(0, len(held), IN_A_PACK):
            pack = held[start : start + IN_A_PACK]
            write_rows(folder, _pack_name(pack[0]), {device: states[device] for device in pack})


def _pack_name(first: int) -> str:
    """The file of the states of several devices, by the first of them."""
    return f"from-{first:07d}.safetensors"


def as_safetensors(state: State, metadata: Mapping[str, str] | None = None) -> bytes:
    """A state as the bytes of a safetensors file.

    Args:
        state: Tensors by name.
        metadata: Texts next to them.
    """
    from safetensors.torch import save

    # Cloned, because safetensors refuses two names for one memory, which a view or a tied layer has.
    arrays = {name: value.detach().cpu().contiguous().clone() for name, value in state.items()}
    data: bytes = save(arrays, metadata=None if metadata is None else dict(metadata))
    return data


def read_state(run: Path, device: int) -> State | None:
    """A device's state from a run folder; None where it has no file."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    path = state_path(run, device)
    try:
        with Folder(run) as whole, whole.folder(MODELS) as folder:
            names = folder.names()
            packs = [name for name in names if name.startswith("from-") and name <= _pack_name(device)]
            if path.name not in names and packs:
                path = run / MODELS / packs[-1]
                return read_rows(folder.read(path.name, MOST_ARRAYS)).get(device)
            return load(folder.read(path.name, MOST_ARRAYS))
    except FileNotFoundError:
        return None
    except (SafetensorError, OSError, ValueError) as problem:
        raise RunFolderError(
            f"The model file {path} is damaged ({getattr(problem, 'strerror', None) or problem})."
        ) from problem


def require_safetensors() -> None:
    """Raise KflError where the package safetensors is missing."""
    try:
        import safetensors.torch  # noqa: F401  # whether it imports is the question
    except ImportError as problem:
        raise KflError(
            "Keeping models needs the package 'safetensors', which is not installed: pip install safetensors, "
            "or run with keep_models=False (kfl run --no-models)."
        ) from problem


def write_rows(folder: Folder, name: str, rows: Mapping[int, State]) -> tuple[str, int]:
    """Write the states, all of them or none; returns the checksum and the size of the file."""
    arrays = {f"{device}/{name}": value for device, row in rows.items() for name, value in row.items()}
    header, offset = {}, 0
    for key, value in arrays.items():
        header[key] = {
            "dtype": TYPES[str(value.dtype).removeprefix("torch.")],
            "shape": list(value.shape),
            "data_offsets": [offset, offset + value.nbytes],
        }
        offset += value.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    start = struct.pack("<Q", len(text)) + text
    total = zlib.crc32(start)
    with folder.atomic(name) as file:
        file.write(start)
        for value in _on_cpu(list(arrays.values())):
            view = _bytes(value)
            file.write(view)
            total = zlib.crc32(view, total)
    return f"crc32 {total:08x}", len(start) + offset


def rows_sum(data: bytes) -> str:
    """The checksum that `write_rows` returned for this content."""
    return f"crc32 {zlib.crc32(data):08x}"


def read_rows(data: bytes) -> dict[int, State]:
    """The states that `write_rows` wrote; ValueError for anything else."""
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
    """The arrays in CPU memory; those on a GPU are copied in batches, because many small copies are slow."""
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
