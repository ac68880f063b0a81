"""A wrong clock for the processes of one host: a small library that is preloaded into them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

_SOURCE = Path(__file__).with_name("skewed_clock.c")


def skew(folder: Path, seconds: int) -> dict[str, str]:
    """Return the variables that set the clock of a process wrong, forward or back.

    Args:
        folder: Where the library is built, once.
        seconds: By how much.
    """
    library = folder / "skewed_clock.so"
    if not library.exists():
        compiler = [shutil.which("cc") or ""] if shutil.which("cc") else [sys.executable, "-m", "ziglang", "cc"]
        building = folder / f"building-{os.getpid()}-{uuid.uuid4().hex}.so"
        flags = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC"]
        subprocess.run([*compiler, *flags, "-o", str(building), str(_SOURCE), "-ldl"], check=True)
        building.replace(library)
    return {"LD_PRELOAD": str(library), "VRAMPOOL_TEST_SKEW_S": str(seconds)}
