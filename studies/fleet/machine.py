"""What a machine has and a fault can take: room on its disk, and the right time."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import struct
import subprocess
from pathlib import Path

CLONE_NEWNS = 0x00020000
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static int64_t none; static volatile int64_t *ahead_ns = &none;
static int (*real)(clockid_t, struct timespec *);
__attribute__((constructor)) static void begin(void) {
    real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("KFL_CLOCK_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *page = mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) ahead_ns = page;
    close(file);
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!real) begin();
    int failed = real(clock, now);
    if (failed || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return failed;
    int64_t ns = (int64_t)now->tv_sec * 1000000000 + now->tv_nsec + *ahead_ns;
    now->tv_sec = ns / 1000000000; now->tv_nsec = ns % 1000000000;
    return 0;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec fine; (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &fine)) return -1;
    now->tv_sec = fine.tv_sec; now->tv_usec = fine.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *out) {
    struct timespec fine; clock_gettime(CLOCK_REALTIME, &fine);
    if (out) *out = fine.tv_sec;
    return fine.tv_sec;
}
"""
"""Preloaded into a process, it adds what a file says to the time of day, for Python, OpenSSL and SQLite alike; clocks
that only run forward (timeouts) stay right, as on a machine whose time is set."""


class Clocks:
    """The clocks of several machines, each by a file that its processes map."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.preloaded = folder, folder / "clock.so"
        folder.mkdir(parents=True, exist_ok=True)
        compiler = shutil.which("cc")
        self.possible = False
        if compiler is not None:
            (folder / "clock.c").write_text(SHIM)
            words = [compiler, "-O2", "-shared", "-fPIC", "-o", str(self.preloaded), str(folder / "clock.c"), "-ldl"]
            self.possible = subprocess.run(words, check=False, capture_output=True).returncode == 0

    def environment(self, machine: str) -> dict[str, str]:
        """What a machine's processes must find in their environment."""
        if not self.possible:
            return {}
        if not self._file(machine).exists():
            self.set(machine, 0.0)
        return {"LD_PRELOAD": str(self.preloaded), "KFL_CLOCK_FILE": str(self._file(machine))}

    def set(self, machine: str, ahead_s: float) -> None:
        """Set a machine's clock to so many seconds ahead of the right time, at once."""
        descriptor = os.open(self._file(machine), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.pwrite(descriptor, struct.pack("q", int(ahead_s * 1e9)), 0)
        finally:
            os.close(descriptor)

    def _file(self, machine: str) -> Path:
        return self.folder / f"{machine}.clock"


class Disk:
    """A small disk at a folder, where this process may mount one; otherwise it cannot be filled."""

    def __init__(self, folder: Path, megabytes: int) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        words = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "kfl-chaos", str(folder)]
        self.possible = subprocess.run(words, check=False, capture_output=True).returncode == 0

    def fill(self, pages: int) -> None:
        """Leave so many pages of 4 kB free."""
        found = os.statvfs(self.folder)
        size = found.f_bavail * found.f_frsize - pages * 4096
        if self.possible and size > 0:
            with (self.folder / "ballast").open("wb") as file, contextlib.suppress(OSError):
                os.posix_fallocate(file.fileno(), 0, size)

    def free(self) -> None:
        """Give the room back."""
        (self.folder / "ballast").unlink(missing_ok=True)

    def unmount(self) -> None:
        """Take it away, with all that is on it."""
        if self.possible:
            self.possible = False
            subprocess.run(["umount", "-l", str(self.folder)], check=False, capture_output=True)


def own_mounts() -> bool:
    """From now on, mounts of this process and its children are seen by them alone and end with them."""
    try:
        alone = ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) == 0
    except (OSError, AttributeError):
        return False
    words = ["mount", "--make-rprivate", "/"]
    return alone and subprocess.run(words, check=False, capture_output=True).returncode == 0
