"""The process of a submission's vram function: one line of JSON says which, each further one asks it.

Started by the coordinator (`vrampool.coordinator.vram_function`) with an environment that holds no credentials.
"""

from __future__ import annotations

import atexit
import base64
import json
import os
import sys
import threading
from typing import Any

from vrampool.messages import ObjectiveRef
from vrampool.objectives.loading import load
from vrampool.units import parse_bytes

#: Let through of what it prints; it is asked for every trial that is made.
PRINTED_BYTES = 64 * 1024


def main() -> None:
    """Answer until standard input ends."""
    # Whatever the function prints must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    _bound_output()

    def answer(content: dict[str, Any]) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    try:
        asked = json.loads(sys.stdin.readline())
        body = asked.pop("body", None)
        function = load(ObjectiveRef.from_json(asked), None if body is None else base64.b64decode(body))
    except BaseException as error:
        answer({"error": f"{type(error).__name__}: {error}"})
        return
    answer({"ready": True})
    for line in sys.stdin:
        try:
            found = function(json.loads(line))
            # NumPy's numbers and fractions of a byte are fine; what is no size is not.
            value = found if isinstance(found, str) else int(found)
            answer({"bytes": parse_bytes(value, what="what it returned")})
        except BaseException as error:
            answer({"error": f"{type(error).__name__}: {error} for {line.strip()}"})


def _bound_output() -> None:
    """Let a little of what this process prints through to where its errors go: that is the coordinator's own log."""
    target = os.dup(2)
    read_fd, write_fd = os.pipe()
    for fd in (1, 2):
        os.dup2(write_fd, fd)
    os.close(write_fd)

    def copy() -> None:
        left, told = PRINTED_BYTES, False
        while data := os.read(read_fd, 65536):
            os.write(target, data[:left])
            if len(data) > left and not told:
                told = True
                os.write(target, b"\n... what the vram function prints beyond that is left out ...\n")
            left = max(0, left - len(data))

    copier = threading.Thread(target=copy, daemon=True)
    copier.start()

    def end() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        for fd in (1, 2):
            os.dup2(target, fd)  # the pipe ends with that
        copier.join(1.0)

    atexit.register(end)


if __name__ == "__main__":
    main()
