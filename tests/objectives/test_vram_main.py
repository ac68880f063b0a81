"""The process that asks a user's vram function: what that prints is none of the answers, and little of it is kept."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from vrampool.objectives import resolve, vram_main

SOURCE = """
def needs(params):
    print("x" * 100_000)
    return params["n"] * 2**20
"""


def test_little_is_kept_of_what_a_vram_function_prints(tmp_path: Path):
    """It is asked for each trial that is made, and its words went into the coordinator's log for ever."""
    (tmp_path / "made.py").write_text(SOURCE)
    reference, _ = resolve(f"{tmp_path / 'made.py'}:needs")
    lines = [reference.to_json(), *({"n": number} for number in range(1, 6))]
    done = subprocess.run(
        [sys.executable, "-m", "vrampool.objectives.vram_main"],
        input="".join(json.dumps(line) + "\n" for line in lines).encode(),
        capture_output=True,
        timeout=30,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert answers == [{"ready": True}, *({"bytes": number * 2**20} for number in range(1, 6))], done.stderr[-500:]
    assert b"prints beyond that is left out" in done.stderr
    assert len(done.stderr) < vram_main.PRINTED_BYTES + 200


def test_what_it_says_at_its_end_is_there(tmp_path: Path):
    (tmp_path / "made.py").write_text("import atexit\natexit.register(print, 'bye')\ndef needs(params): return 1\n")
    reference, _ = resolve(f"{tmp_path / 'made.py'}:needs")
    done = subprocess.run(
        [sys.executable, "-m", "vrampool.objectives.vram_main"],
        input=json.dumps(reference.to_json()).encode() + b"\n",
        capture_output=True,
        timeout=30,
    )
    assert done.stderr == b"bye\n"
