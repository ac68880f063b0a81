"""The process of a submission's vram function: one line of JSON says which, each further one asks it.

Started by the coordinator (`vrampool.coordinator.vram_function`) with an environment that holds no credentials.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from typing import Any

from vrampool.messages import ObjectiveRef
from vrampool.objectives.loading import load
from vrampool.units import parse_bytes


def main() -> None:
    """Answer until standard input ends."""
    # Whatever the function prints must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

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


if __name__ == "__main__":
    main()
