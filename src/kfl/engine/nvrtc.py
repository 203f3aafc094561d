"""CUDA kernels from source: compiled when they are first needed, by NVIDIA's run-time compiler or by nvcc.

PyTorch for CUDA brings the run-time compiler along, so users need nothing else. Only the few functions used here
are called, through ctypes; nothing of this runs on a machine without an NVIDIA GPU.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kfl.engine.compile import CompileError

Grid = tuple[int, int, int]


class CompiledKernels:
    """Kernels of one source file on one GPU."""

    def __init__(self, source: Path, options: Sequence[str], where: torch.device) -> None:
        torch.zeros(1, device=where)  # PyTorch makes the context that everything below works in.
        major, minor = torch.cuda.get_device_capability(where)
        binary = compile_source(source, options, f"sm_{major}{minor}")
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._module = ctypes.c_void_p()
        self._check(self._driver.cuModuleLoadData(ctypes.byref(self._module), binary), "loading kernels")
        self._functions: dict[str, ctypes.c_void_p] = {}

    def launch(self, name: str, grid: Grid, threads: int, arguments: Sequence[Tensor | int]) -> None:
        """Start a kernel in PyTorch's current stream. Tensors must be contiguous."""
        values: list[Any] = []
        for argument in arguments:
            if isinstance(argument, Tensor):
                values.append(ctypes.c_void_p(argument.data_ptr()))
            else:
                values.append(ctypes.c_int(argument))
        pointers = (ctypes.c_void_p * len(values))(*[ctypes.addressof(value) for value in values])
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        code = self._driver.cuLaunchKernel(
            self._function(name), *(ctypes.c_uint(n) for n in (*grid, threads, 1, 1, 0)), stream, pointers, None
        )
        self._check(code, f"starting {name}")

    def _function(self, name: str) -> ctypes.c_void_p:
        if name not in self._functions:
            found = ctypes.c_void_p()
            code = self._driver.cuModuleGetFunction(ctypes.byref(found), self._module, name.encode())
            self._check(code, f"finding {name}")
            self._functions[name] = found
        return self._functions[name]

    def _check(self, code: int, doing: str) -> None:
        if code == 0:
            return
        text = ctypes.c_char_p()
        self._driver.cuGetErrorString(ctypes.c_int(code), ctypes.byref(text))
        raise CompileError(f"{doing}: {text.value.decode() if text.value else f'CUDA error {code}'}")


def compile_source(source: Path, options: Sequence[str], architecture: str) -> bytes:
    """Machine code for an architecture such as sm_90."""
    library = _find_library()
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    problem = "there is no libnvrtc"
    if library is not None:
        try:
            return _by_library(library, source, [*options, f"--gpu-architecture={architecture}"])
        except (CompileError, AttributeError) as error:
            problem = str(error)
    if nvcc is None:
        raise CompileError(f"{problem}, and there is no nvcc")
    return _by_nvcc(nvcc, source, [*options, f"-arch={architecture}"])


def _find_library() -> ctypes.CDLL | None:
    """The run-time compiler that belongs to PyTorch."""
    major = (torch.version.cuda or "0").partition(".")[0]
    packages = Path(torch.__file__).parent.parent
    nearby = [*packages.glob(f"nvidia/**/libnvrtc.so.{major}*"), *packages.glob("torch/lib/libnvrtc*.so*")]
    for name in (f"libnvrtc.so.{major}", *(str(path) for path in sorted(nearby)), "libnvrtc.so"):
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        if hasattr(library, "nvrtcGetCUBIN"):
            return library
    return None


def _by_library(library: ctypes.CDLL, source: Path, options: Sequence[str]) -> bytes:
    program = ctypes.c_void_p()
    created = library.nvrtcCreateProgram(
        ctypes.byref(program), source.read_bytes(), source.name.encode(), 0, None, None
    )
    if created != 0:
        raise CompileError(f"the run-time compiler refuses {source.name} with code {created}")
    try:
        words = [option.encode() for option in options]
        code = library.nvrtcCompileProgram(program, len(words), (ctypes.c_char_p * len(words))(*words))
        if code != 0:
            log = _text(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program)
            lines = log.rstrip(b"\0").decode(errors="replace").strip().splitlines()
            raise CompileError(f"{source.name} does not compile: {lines[0] if lines else f'code {code}'}")
        return _text(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _text(size_of: Any, read: Any, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    if size_of(program, ctypes.byref(size)) != 0:
        raise CompileError("the run-time compiler gives no result")
    buffer = ctypes.create_string_buffer(max(size.value, 1))
    if read(program, buffer) != 0:
        raise CompileError("the run-time compiler gives no result")
    return buffer.raw[: size.value]


def _by_nvcc(nvcc: str, source: Path, options: Sequence[str]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "kernels.cubin"
        command = [nvcc, "-cubin", *options, "-o", str(target), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines()
            raise CompileError(f"{source.name} does not compile: {lines[0] if lines else done.returncode}")
        return target.read_bytes()
