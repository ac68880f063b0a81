"""Frames between a worker and its child: length, kind, body. Imported by the child, so it stays light.

A frame is 5 bytes of header (kind, then the body's length as a big-endian uint32) and the body: UTF-8 JSON for
kind ``J``, raw bytes for kind ``B``. The length comes first so that a size is refused before it is buffered.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

from vrampool.errors import MessageError

HEADER = struct.Struct(">cI")
KIND_JSON = b"J"
KIND_BYTES = b"B"
#: Largest body a child may send: big enough for a user attribute of several MB, small enough to hold for 16 children.
CHILD_LIMIT_BYTES = 32 * 1024**2


def encode(message: dict[str, Any]) -> bytes:
    """Encode a JSON message as one frame. NaN and infinity pass: reports and values of Optuna may hold them."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return HEADER.pack(KIND_JSON, len(body)) + body


def encode_bytes(body: bytes) -> bytes:
    """Encode raw bytes (a bundle) as one frame."""
    return HEADER.pack(KIND_BYTES, len(body)) + body


class FrameReader:
    """Collects bytes as they arrive and yields whole frames; a cut-off frame at the end is never yielded."""

    def __init__(self, limit_bytes: int = CHILD_LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any] | bytes]:
        """Add data and yield each frame that is complete: a dict for JSON, bytes for raw.

        Raises:
            MessageError: a frame is over the limit, of unknown kind, or not a JSON object.
        """
        self._buffer += data
        while len(self._buffer) >= HEADER.size:
            kind, length = HEADER.unpack_from(self._buffer)
            if length > self._limit_bytes:
                raise MessageError(f"a frame of {length} bytes is over the limit of {self._limit_bytes}")
            end = HEADER.size + length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[HEADER.size : end])
            del self._buffer[:end]
            yield _decode(kind, body)


def _decode(kind: bytes, body: bytes) -> dict[str, Any] | bytes:
    if kind == KIND_BYTES:
        return body
    if kind != KIND_JSON:
        raise MessageError(f"unknown kind of frame {kind!r}")
    try:
        message = json.loads(body)
    except ValueError as error:
        raise MessageError(f"a frame is not JSON: {error}") from None
    if not isinstance(message, dict):
        raise MessageError("a frame is not a JSON object")
    return message
