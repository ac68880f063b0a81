"""The bounded log of one attempt: its head and its tail, as bytes, whatever a trial prints."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

#: Of what is kept, the share of the head: how it began, with its warnings. The rest is how it ended.
_HEAD_SHARE = 0.25


class ChildLog:
    """Keeps what a trial prints, up to a limit, and writes it to a file when told to.

    The bytes are never decoded: a trial may print anything. A file that cannot be written is no trial's fault; the log
    then stays in memory and `problem` says why.

    Args:
        limit_bytes: Most that is kept, and the largest the file gets but for one line that says what is missing.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._head_limit = max(1, int(limit_bytes * _HEAD_SHARE))
        self._tail_limit = max(1, limit_bytes - self._head_limit)
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._dropped_bytes = 0
        self._path: Path | None = None
        self._fd: int | None = None
        self._written_bytes = 0  #: of the head, which only grows
        self._dirty = False
        self.problem = ""

    @property
    def path(self) -> Path | None:
        """Where it is written to; None until `open`."""
        return self._path

    @property
    def overflowed(self) -> bool:
        """Whether something had to be left out."""
        return self._dropped_bytes > 0

    @property
    def dirty(self) -> bool:
        """Whether there is something that the file does not hold yet."""
        return self._dirty and self._fd is not None

    def open(self, path: Path) -> None:
        """Write to this file from now on, what was kept before included."""
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self.problem = f"cannot write {path}: {error.strerror}"
        self._dirty = bool(self._head)

    def add(self, data: bytes) -> None:
        """Keep some output."""
        if not data:
            return
        self._dirty = True
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        self._tail.append(data)
        self._tail_bytes += len(data)
        while self._tail_bytes > self._tail_limit:
            excess = self._tail_bytes - self._tail_limit
            first = self._tail.popleft()
            if len(first) > excess:
                self._tail.appendleft(first[excess:])
                excess_dropped = excess
            else:
                excess_dropped = len(first)
            self._tail_bytes -= excess_dropped
            self._dropped_bytes += excess_dropped

    def content(self) -> bytes:
        """Return all that is kept, with a line where something is missing."""
        return bytes(self._head) + self._after_head()

    def since(self, position: int) -> list[tuple[int, bytes]]:
        """Return what is kept of the output from a position on, as pieces with the position at which each begins.

        Positions count all that was printed, so a reader sees by a jump what was left out between two pieces.
        """
        pieces = [(position, bytes(self._head[position:]))] if position < len(self._head) else []
        first = len(self._head) + self._dropped_bytes
        tail = b"".join(self._tail)
        if tail and position < first + len(tail):
            begin = max(position, first)
            pieces.append((begin, tail[begin - first :]))
        return pieces

    def tail(self, limit_bytes: int = 2000) -> str:
        """Return the end of it as text, for a message."""
        return self.content()[-limit_bytes:].decode(errors="replace").strip()

    def _after_head(self) -> bytes:
        note = b""
        if self._dropped_bytes:
            note = b"\n... %d bytes of output left out here ...\n" % self._dropped_bytes
        return note + b"".join(self._tail)

    def flush(self) -> None:
        """Bring the file up to date. What stands in it already is not written again, but for a tail that moved."""
        if self._fd is None or not self._dirty:
            return
        try:
            if self._written_bytes < len(self._head):
                self._write_at(bytes(self._head[self._written_bytes :]), self._written_bytes)
                self._written_bytes = len(self._head)
            rest = self._after_head()
            self._write_at(rest, self._written_bytes)
            os.ftruncate(self._fd, self._written_bytes + len(rest))
            self._dirty = False
        except OSError as error:
            self.problem = f"cannot write {self._path}: {error.strerror}"
            self._close_file()

    def _write_at(self, data: bytes, offset: int) -> None:
        assert self._fd is not None
        while data:
            written = os.pwrite(self._fd, data, offset)
            data, offset = data[written:], offset + written

    def close(self) -> None:
        """Write what is missing and close the file. May be called twice."""
        self.flush()
        self._close_file()

    def _close_file(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
