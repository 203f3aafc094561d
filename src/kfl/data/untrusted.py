"""Read npz and npy files from untrusted sources: no pickles, and no more memory than the file itself fills.

NumPy trusts the header of an array and allocates before it reads; here header, archive and file must agree first.
"""

from __future__ import annotations

import io
import math
import zipfile
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read_npz(data: bytes) -> dict[str, NDArray[Any]]:
    """The arrays that `numpy.savez` wrote; ValueError for anything else.

    >>> buffer = io.BytesIO()
    >>> np.savez(buffer, a=np.arange(3))
    >>> read_npz(buffer.getvalue())
    {'a': array([0, 1, 2])}
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return {
                info.filename.removesuffix(".npy"): _member(archive, info, len(data)) for info in archive.infolist()
            }
    except ValueError:
        raise
    except Exception as problem:  # zipfile and NumPy's header parser raise anything from KeyError to TokenError
        raise ValueError(f"it is not an npz file ({problem})") from problem


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, most: int) -> NDArray[Any]:
    if info.compress_type != zipfile.ZIP_STORED or info.file_size > most:
        raise ValueError(f"{info.filename} is larger unpacked than packed")
    return _array(archive.read(info), info.filename)


def read_header(content: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran's order, and type of the array that follows; ValueError where there is none."""
    version = np.lib.format.read_magic(content)
    if version not in READERS:
        raise ValueError("it has an unknown version")
    shape, fortran, dtype = READERS[version](content)
    return shape, fortran, dtype


def _array(data: bytes, name: str) -> NDArray[Any]:
    content = io.BytesIO(data)
    shape, fortran, dtype = read_header(content)
    if dtype.hasobject:
        raise ValueError(f"{name} holds Python objects, not numbers")
    rest = content.read()
    if math.prod(shape) * dtype.itemsize != len(rest):
        raise ValueError(f"{name} declares the shape {shape} but holds {len(rest)} bytes")
    return np.frombuffer(rest, dtype).reshape(shape, order="F" if fortran else "C").copy(order="C")
