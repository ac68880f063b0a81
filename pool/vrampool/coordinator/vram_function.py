"""A submission's own function from parameters to memory, run in a process of its own.

It is the user's code, and the coordinator holds the pool's secret and its database: so it is never imported or opened
there. Like an objective it travels by import path or as a signed bundle, and runs in a process that has no
credentials; parameters go in and bytes come out, a line of JSON each.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any, NoReturn

from vrampool.errors import InputError
from vrampool.messages import SubmissionSpec

#: An import of torch on a busy machine takes many seconds; a function that is not there after so long is stuck.
START_S = 120.0
#: The coordinator waits for an answer, and so does the whole pool.
ANSWER_S = 2.0
#: What the process needs of the coordinator's environment; all else may hold a secret.
_PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV")
_ANSWER_LIMIT_BYTES = 64 * 1024


class _GoneError(Exception):
    """Its process is not there any more."""


class VramFunction:
    """Asks a function how many bytes a trial needs.

    Args:
        function: How it travels: an `ObjectiveRef` as JSON, with the key ``body`` for a bundle in base64. Comes out of
            a submission whose signature has been checked.
        spec: The submission; its ``env`` is set in the process.
    """

    def __init__(self, function: Mapping[str, Any], spec: SubmissionSpec) -> None:
        self._function = dict(function)
        self._name = str(function.get("target"))
        environment = {name: os.environ[name] for name in _PASSED if name in os.environ}
        self._environment = environment | spec.env | {"OMP_NUM_THREADS": "1"}
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._ready = False
        self._started_at_s = 0.0
        self.smallest_bytes = 0  #: smallest answer so far; 0: none yet

    def ready(self) -> bool:
        """Start it, or look whether it has started. Waits for nothing.

        Raises:
            InputError: it cannot be imported or opened, or takes too long.
        """
        try:
            return self._is_ready()
        except _GoneError as error:
            raise InputError(str(error)) from None

    def _is_ready(self) -> bool:
        if self._ready:
            return True
        if self._process is None:
            self._start()
        answer = self._line(0.0)
        if answer is None:
            if time.monotonic() - self._started_at_s > START_S:
                self.close()
                raise InputError(f"the vram function {self._name} did not start within {START_S:.0f} s")
            return False
        self._check(answer)
        self._ready = True
        return True

    def ask(self, params: Mapping[str, Any]) -> int:
        """Return the bytes that a trial with these parameters needs.

        Raises:
            InputError: it raised, returned no size, or took too long.
        """
        try:
            answer = self._asked(params)
        except _GoneError:  # killed for memory, perhaps: the code is the user's, once more costs little
            try:
                answer = self._asked(params)
            except _GoneError as error:
                raise InputError(str(error)) from None
        self._check(answer)
        found = int(answer["bytes"])
        self.smallest_bytes = min(self.smallest_bytes or found, found)
        return found

    def _asked(self, params: Mapping[str, Any]) -> dict[str, Any]:
        while not self._is_ready():  # says so itself when it takes too long
            self._wait(0.1)
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(dict(params)).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            self._gone()
        answer = self._line(ANSWER_S)
        if answer is None:
            self.close()
            raise InputError(f"the vram function {self._name} took more than {ANSWER_S:.0f} s for {dict(params)}")
        return answer

    def close(self) -> None:
        """End its process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    stream.close()
        self._process, self._ready, self._buffer = None, False, b""

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "vrampool.objectives.vram_main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._environment,
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._started_at_s = time.monotonic()
        self._process.stdin.write(json.dumps(self._function).encode() + b"\n")
        self._process.stdin.flush()

    def _line(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the next line; None when it has not come in time."""
        assert self._process is not None and self._process.stdout is not None
        deadline_s = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            if not self._wait(deadline_s - time.monotonic()):
                return None
            part = self._process.stdout.read(_ANSWER_LIMIT_BYTES)
            if not part:
                self._gone()
            self._buffer += part
            if len(self._buffer) > _ANSWER_LIMIT_BYTES:
                self.close()
                raise InputError(f"the vram function {self._name} answers too much")
        line, _, self._buffer = self._buffer.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def _wait(self, timeout_s: float) -> bool:
        assert self._process is not None and self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], max(timeout_s, 0.0))[0])

    def _gone(self) -> NoReturn:
        code = self._process.wait() if self._process is not None else None
        self.close()
        raise _GoneError(f"the process of the vram function {self._name} went away (exit code {code})")

    def _check(self, answer: Mapping[str, Any]) -> None:
        if "error" in answer:
            self.close()
            raise InputError(f"the vram function {self._name}: {answer['error']}")
