"""What comes out of a child, taken in a measured way: a child that floods is slowed, never its neighbours.

A flood is not read any faster than a bucket of tokens allows; the rest stays in the kernel, and the child blocks in its
own write. Nothing here blocks.
"""

from __future__ import annotations

import os
import selectors
import socket
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from vrampool.framing import FrameReader
from vrampool_worker.children.log import ChildLog

OnReady = Callable[[int], None]

FRAMES_PER_S = 2000.0
OUTPUT_BYTES_PER_S = 32 * 1024.0**2
_RECV_BYTES = 64 * 1024
#: Frames in one turn of the loop, so that other children get theirs.
_FRAMES_PER_TURN = 64
#: A frame costs one token, and one more for each so many of its bytes: large ones take the loop's time as well.
_BYTES_PER_TOKEN = 16 * 1024
_OUTPUT_READS_PER_TURN = 8


class TokenBucket:
    """Says when one may go on. Takes are never refused; they lead into debt, and the debt takes time."""

    def __init__(self, rate_per_s: float, burst: float) -> None:
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._tokens = burst
        self._at_s = 0.0

    def take(self, amount: float, now_s: float) -> None:
        self._tokens = min(self._burst, self._tokens + (now_s - self._at_s) * self._rate_per_s) - amount
        self._at_s = now_s

    def free_at_s(self) -> float | None:
        """Return when the debt is paid, or None when there is none."""
        return None if self._tokens >= 0 else self._at_s - self._tokens / self._rate_per_s


class _Source:
    """A descriptor in the selector, taken out of it while its bucket is in debt. Its `data` is called with the mask."""

    def __init__(self, fd: int, bucket: TokenBucket, selector: selectors.BaseSelector, on_ready: OnReady) -> None:
        self._fd = fd
        self._bucket = bucket
        self._selector = selector
        self._on_ready = on_ready
        self._mask = 0
        self.closed = False
        self.due_s: float | None = None  #: when `resume` is to be called

    def _watch(self, mask: int) -> None:
        if mask == self._mask:
            return
        if self._mask == 0:
            self._selector.register(self._fd, mask, self._on_ready)
        elif mask == 0:
            self._selector.unregister(self._fd)
        else:
            self._selector.modify(self._fd, mask, self._on_ready)
        self._mask = mask


class FrameIntake(_Source):
    """The frame socket of a child: whole frames in, buffered frames out."""

    def __init__(self, frames: socket.socket, selector: selectors.BaseSelector, on_ready: OnReady) -> None:
        super().__init__(frames.fileno(), TokenBucket(FRAMES_PER_S, FRAMES_PER_S), selector, on_ready)
        frames.setblocking(False)
        self._socket = frames
        self._reader = FrameReader()
        self._out: deque[memoryview] = deque()
        self._muted = False
        self._watch(selectors.EVENT_READ)

    def send(self, data: bytes) -> None:
        """Send as much as goes now; the rest goes when the child reads."""
        if not self.closed and not self._muted:
            self._out.append(memoryview(data))
            self.write()

    def write(self) -> None:
        try:
            while self._out:
                sent = self._socket.send(self._out[0])
                if sent == len(self._out[0]):
                    self._out.popleft()
                else:
                    self._out[0] = self._out[0][sent:]
        except BlockingIOError:
            pass
        except (BrokenPipeError, ConnectionResetError):  # it is dead; its end comes another way
            self._out.clear()
        self._rewatch()

    def read(self, now_s: float) -> Iterator[dict[str, Any] | bytes]:
        """Yield the frames of this turn.

        Raises:
            MessageError: what came is no frame of ours.
        """
        try:
            data = self._socket.recv(_RECV_BYTES)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        if not data:
            self.close()
            return
        yield from self._take(data, now_s)

    def resume(self, now_s: float) -> Iterator[dict[str, Any] | bytes]:
        """Go on after a debt or with what a full turn left over."""
        yield from self._take(b"", now_s)

    def _take(self, data: bytes, now_s: float) -> Iterator[dict[str, Any] | bytes]:
        count = 0
        try:
            for frame in islice(self._reader.feed(data), _FRAMES_PER_TURN):
                count += 1
                yield frame
        finally:
            self._bucket.take(count + len(data) / _BYTES_PER_TOKEN, now_s)
            self.due_s = self._bucket.free_at_s()
            if self.due_s is None and count == _FRAMES_PER_TURN:
                self.due_s = now_s  # there may be more in the buffer, of which the selector knows nothing
            self._rewatch()

    def drain(self) -> Iterator[dict[str, Any] | bytes]:
        """Yield all that a dead child has left in the socket: at most what the kernel held."""
        self.due_s = None
        if self._muted:
            return
        yield from self._reader.feed(b"")
        while not self.closed:
            try:
                data = self._socket.recv(_RECV_BYTES)
            except BlockingIOError:  # something that was forked from it holds the other end
                return
            except ConnectionResetError:
                data = b""
            if not data:
                self.close()
                return
            yield from self._reader.feed(data)

    def mute(self) -> None:
        """Listen no more, and leave the socket open: its end would have the child exit before it can be killed."""
        self._muted = True
        self.due_s = None
        self._out.clear()
        self._watch(0)

    def _rewatch(self) -> None:
        if self._muted:
            self.due_s = None
        elif not self.closed:
            mask = selectors.EVENT_READ if self.due_s is None else 0
            self._watch(mask | (selectors.EVENT_WRITE if self._out else 0))

    def close(self) -> None:
        """Stop listening and close the socket. May be called twice."""
        if not self.closed:
            self._watch(0)
            self.closed = True
            self.due_s = None
            self._socket.close()


class OutputIntake(_Source):
    """The pipe of a child's stdout and stderr, into its log."""

    def __init__(self, fd: int, log: ChildLog, selector: selectors.BaseSelector, on_ready: OnReady) -> None:
        super().__init__(fd, TokenBucket(OUTPUT_BYTES_PER_S, OUTPUT_BYTES_PER_S / 4), selector, on_ready)
        os.set_blocking(fd, False)
        self._log = log
        self._watch(selectors.EVENT_READ)

    def read(self, now_s: float) -> None:
        """Take what has been printed, up to a turn's share."""
        self.due_s = None
        for _ in range(_OUTPUT_READS_PER_TURN):
            try:
                data = os.read(self._fd, _RECV_BYTES)
            except BlockingIOError:
                break
            if not data:
                self.close()
                return
            self._log.add(data)
            self._bucket.take(len(data), now_s)
        self.due_s = self._bucket.free_at_s()
        self._watch(selectors.EVENT_READ if self.due_s is None else 0)

    def drain(self) -> None:
        """Take what is in the pipe at the end: no more than the kernel holds, whoever still writes."""
        for _ in range(1024**2 // _RECV_BYTES):
            if self.closed:
                return
            try:
                data = os.read(self._fd, _RECV_BYTES)
            except BlockingIOError:
                return
            if not data:
                self.close()
                return
            self._log.add(data)

    def close(self) -> None:
        """Stop listening and close the pipe. May be called twice."""
        if not self.closed:
            self._watch(0)
            self.closed = True
            self.due_s = None
            os.close(self._fd)
