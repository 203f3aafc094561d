"""C sources compiled when they are first needed, by the machine's compiler, and kept in the user's cache.

The compiler is `$CC`, cc, gcc, clang, or the clang inside the package `ziglang` (extra `fast`), the first of these that
runs. A library is found again by its source, options, compiler and processor. It is written whole or not at all, so
that processes that start together do not read half of one.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kfl.data import resolve_cache_dir

OPTIONS = ("-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-std=gnu11", "-shared", "-fPIC", "-w")
LONGEST_S = 120.0


class CompileError(Exception):
    """A source could not be compiled or loaded; the message says why."""


@dataclass(frozen=True)
class Compiler:
    """A C compiler of this machine."""

    command: tuple[str, ...]
    name: str
    """The first line of what it says of itself, which belongs to the key of what it compiles."""


def find_compiler() -> Compiler | None:
    """Return the C compiler that is used, or None where there is none."""
    return _find_compiler(os.environ.get("CC", ""), os.environ.get("PATH", ""))


@functools.cache
def _find_compiler(chosen: str, path: str) -> Compiler | None:
    commands: list[tuple[str, ...]] = [tuple(shlex.split(chosen))] if chosen else []
    commands += [(name,) for name in ("cc", "gcc", "clang") if shutil.which(name, path=path)]
    if importlib.util.find_spec("ziglang") is not None:
        commands.append((sys.executable, "-m", "ziglang", "cc"))
    for command in commands:
        try:
            said = _run([*command, "--version"])
        except CompileError:
            continue
        return Compiler(command, (said.splitlines() or [command[0]])[0].strip())
    return None


def load_library(source: Path, macros: Sequence[str]) -> ctypes.CDLL:
    """Return a library compiled from a source of this package with the given macros.

    Args:
        source: The C file.
        macros: Definitions such as `"OC=6"`.

    Returns:
        The loaded library.

    Raises:
        CompileError: If there is no compiler, or the source does not compile.
    """
    compiler = find_compiler()
    if compiler is None:
        raise CompileError("there is no C compiler")
    options = [*OPTIONS, *(f"-D{macro}" for macro in macros)]
    if platform.machine().lower() in ("arm64", "aarch64"):
        options[options.index("-march=native")] = "-mcpu=native"
    key = hashlib.blake2b(digest_size=12)
    for part in (source.read_bytes(), "\n".join(options).encode(), compiler.name.encode(), _processor().encode()):
        key.update(part + b"\0")
    path = _cache() / f"{source.stem}-{key.hexdigest()}.so"
    if not path.exists():
        _compile([*compiler.command, *options, str(source)], path)
    try:
        return ctypes.CDLL(str(path))
    except OSError as problem:
        raise CompileError(f"{path} cannot be loaded ({problem})") from problem


def _compile(command: list[str], path: Path) -> None:
    """Compile next to the target and move it there whole."""
    file, unfinished = tempfile.mkstemp(suffix=".so.part", dir=path.parent)
    os.close(file)
    try:
        _run([*command, "-o", unfinished])
        Path(unfinished).replace(path)
    finally:
        Path(unfinished).unlink(missing_ok=True)


def _run(command: list[str]) -> str:
    """What a command prints; a CompileError where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONGEST_S)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise CompileError(f"{command[0]} does not run ({problem})") from problem
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or ["no message"]
        raise CompileError(f"{command[0]} ends with code {done.returncode}: {lines[0]}")
    return done.stdout


@functools.cache
def _cache() -> Path:
    """The folder of compiled libraries: the user's cache, or a temporary one where that cannot be written."""
    folder = resolve_cache_dir() / "kernels"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        return Path(tempfile.mkdtemp(prefix="kfl-kernels-"))


@functools.cache
def _processor() -> str:
    """What tells processors apart for which `-march=native` means different things."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))
