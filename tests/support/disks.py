"""Small disks that a test fills."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disks(folder: Path) -> Iterator[Callable[[str], Path]]:
    """Mount file systems of a given size below a folder while the context lasts; skip where that cannot be."""
    made: list[Path] = []

    def mount(size: str) -> Path:
        place = folder / f"disk{len(made)}"
        place.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "small", str(place)], capture_output=True, check=False
        )
        if done.returncode != 0:
            pytest.skip(f"no file system can be mounted here: {done.stderr.decode().strip()}")
        made.append(place)
        return place

    try:
        yield mount
    finally:
        for place in made:
            subprocess.run(["umount", "-l", str(place)], check=False)


def fill(folder: Path, *, leave_bytes: int = 0) -> Path:
    """Fill a disk to its last byte, or to all but so many; return the file that does."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while file.write(b"x" * size) == size:
                    pass
            except OSError:
                continue
        assert shutil.disk_usage(folder).free == 0
        file.truncate(file.tell() - leave_bytes)
    return ballast
