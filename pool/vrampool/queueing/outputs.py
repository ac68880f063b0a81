"""What a trial prints, on its way from its worker to somebody who asked: one short-lived stream for each reader.

Output stays on the worker's host. Only while somebody reads does a copy pass through Redis, and it is gone a minute
later: ten thousand trials with their output would fill a Redis. Who asks must hold the pool's secret (the request is a
signed command), and the key that answers has an unguessable name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import redis

from vrampool.queueing.connection import talks_to_redis
from vrampool.queueing.names import Names

#: The command that asks for output: fields `workers`, `id` (the reader), `study`, `number`.
COMMAND = "show_output"
KEPT_S = 60
#: A piece holds no more, and a stream no more of them: a slow reader misses the middle and is told so by a jump.
PIECE_BYTES = 32 * 1024
PIECES_KEPT = 64


@dataclass(frozen=True)
class Piece:
    """Some output, or a word about it."""

    worker: str
    position: int  #: of its first byte, counted from the trial's first one
    data: bytes = b""
    state: str = "running"  #: "running", "ended" (the last piece) or "missing" (this worker has no output of it)


class Outputs:
    """The streams of a pool's readers."""

    def __init__(self, connection: redis.Redis, pool: str) -> None:
        self._connection = connection
        self._prefix = Names(pool).output_prefix

    @talks_to_redis
    def show(self, reader: str, pieces: Iterable[Piece]) -> None:
        """Give a reader pieces, in order. Round trips: 1."""
        key = self._prefix + reader
        with self._connection.pipeline() as pipeline:
            for piece in pieces:
                fields: dict[Any, Any] = {
                    "worker": piece.worker,
                    "position": piece.position,
                    "data": piece.data,
                    "state": piece.state,
                }
                pipeline.xadd(key, fields, maxlen=PIECES_KEPT)
            pipeline.expire(key, KEPT_S)
            pipeline.execute()

    @talks_to_redis
    def read(self, reader: str, after: str, *, wait_s: float) -> tuple[list[Piece], str]:
        """Return what came after an entry ("0": the beginning) and the last entry's id; waits for the first a while.

        Round trips: 1.
        """
        key = self._prefix + reader
        found: Any = self._connection.xread({key: after}, count=PIECES_KEPT, block=max(1, int(wait_s * 1000)))
        entries = _entries(found)
        pieces = [_read(fields) for _, fields in entries]
        return pieces, entries[-1][0].decode() if entries else after

    @talks_to_redis
    def forget(self, reader: str) -> None:
        """Take a reader's stream away. Round trips: 1."""
        self._connection.delete(self._prefix + reader)


def cut(worker: str, position: int, data: bytes, state: str = "running") -> list[Piece]:
    """Cut output into pieces that a stream takes; the last one carries the state."""
    starts = range(0, len(data), PIECE_BYTES) or range(1)
    last = starts[-1]
    return [
        Piece(worker, position + start, data[start : start + PIECE_BYTES], state if start == last else "running")
        for start in starts
    ]


def _entries(found: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    if not found:
        return []
    streams = list(found.values()) if isinstance(found, dict) else [stream[1] for stream in found]
    entries = streams[0]
    if entries and isinstance(entries[0], list):  # RESP3 nests them once more
        entries = entries[0]
    return list(entries)


def _read(fields: dict[bytes, bytes]) -> Piece:
    return Piece(fields[b"worker"].decode(), int(fields[b"position"]), fields[b"data"], fields[b"state"].decode())
