"""Runs the code blocks of the guides, so that what they show is what works.

A block to be run has a comment in front of it, which no reader sees, with the scripts that it is part of::

    <!-- run: optuna pool -->
    ```python
    ...
    ```

A script is all blocks of a page with its name, in order, as cells of a notebook are.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

_BLOCK = re.compile(
    r"(?:<!-- run: (?P<scripts>[a-z -]+) -->\n)?```(?P<language>\w*)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE
)


def scripts_of(page: Path) -> dict[str, list[str]]:
    """Return the Python blocks of a page by script, in order; script "" has those that no comment names."""
    found: dict[str, list[str]] = defaultdict(list)
    for match in _BLOCK.finditer(page.read_text()):
        if match["language"] == "python":
            for script in (match["scripts"] or "").split() or [""]:
                found[script].append(match["code"])
    return dict(found)


def run_blocks(
    codes: list[str], folder: Path, *, timeout_s: float = 100, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run blocks as one script with `folder` as its working directory; the caller looks at the result."""
    script = folder / "guide.py"
    script.write_text("\n".join(codes))
    return subprocess.run(
        [sys.executable, script.name],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=timeout_s,
        env={**os.environ, "MPLBACKEND": "agg", "OMP_NUM_THREADS": "1", **(env or {})},
    )


def pool_is_built() -> bool:
    """Return whether all parts that a pool needs are there."""
    return all(
        importlib.util.find_spec(package) and importlib.util.find_spec(f"{package}.{module}")
        for package, module in (
            ("vrampool", "pool"),
            ("vrampool", "coordinator"),
            ("vrampool", "cli"),
            ("vrampool_worker", "child"),
            ("vrampool_worker", "worker"),
        )
    )
