"""Shows what trials print to readers who asked with a signed command: `vrampool logs`, from this host or another."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vrampool.queueing.outputs import PIECE_BYTES, PIECES_KEPT, Piece, cut

if TYPE_CHECKING:
    from vrampool_worker.children.child import Child
    from vrampool_worker.worker import WorkerLoop

#: Pause between two looks at what was printed.
LOOK_S = 0.3
#: A reader that does not ask again within this time has gone.
READER_LIFE_S = 30.0
#: More at once are not served: whoever has the secret could else have a worker copy without end.
MOST_READERS = 16
#: The most that is sent in one look: half of what a stream keeps, so that a reader who is quick misses nothing.
_MOST_BYTES = PIECE_BYTES * PIECES_KEPT // 2


@dataclass(eq=False)
class _Reader:
    id: str
    child: Child
    until_s: float
    position: int = 0
    told: bool = False  #: has had an answer
    sending: bool = False


class OutputDesk:
    """The readers of one worker. Only the main loop calls it; the queue lane writes.

    Args:
        loop: The main loop.
    """

    def __init__(self, loop: WorkerLoop) -> None:
        self._loop = loop
        self._readers: dict[str, _Reader] = {}

    def asked(self, message: dict[str, Any]) -> None:
        """Serve a reader. Asked again, an earlier reader is kept for longer."""
        reader_id, study, number = str(message["id"]), str(message["study"]), int(message["number"])
        now_s = time.monotonic()
        known = self._readers.get(reader_id)
        if known is not None:
            known.until_s = now_s + READER_LIFE_S
            return
        child = self._child(study, number)
        if child is None:
            self._send_file(reader_id, self._loop.runner.log_path(study, number))
        elif len(self._readers) < MOST_READERS:
            self._readers[reader_id] = _Reader(reader_id, child, now_s + READER_LIFE_S)
            self.look()

    def _child(self, study: str, number: int) -> Child | None:
        for attempt in self._loop.attempts.values():
            if (attempt.ticket.study_name, attempt.ticket.number) == (study, number):
                return attempt.child
        return None

    def _send_file(self, reader_id: str, path: Path) -> None:
        """Send the whole output of a trial that has ended; its size is bounded by the log's own limit."""
        name, port = self._loop.name, self._loop.port

        def work() -> None:
            try:
                pieces = cut(name, 0, path.read_bytes()[-_MOST_BYTES:], "ended")
            except OSError:
                pieces = [Piece(name, 0, state="missing")]
            port.show_output(reader_id, pieces)

        self._loop.queue_lane.submit(work, lambda _result, _error: None)  # who had no answer asks again

    def look(self) -> None:
        """Send each reader what is new."""
        now_s = time.monotonic()
        for reader in list(self._readers.values()):
            if now_s > reader.until_s:
                del self._readers[reader.id]
            elif not reader.sending:
                self._send_new(reader)

    def _send_new(self, reader: _Reader) -> None:
        gone = reader.child.gone  # before the log is read: what comes after it is nothing
        pieces: list[Piece] = []
        position = reader.position
        for start, data in reader.child.log.since(position):
            data = data[: _MOST_BYTES - sum(len(piece.data) for piece in pieces)]
            pieces += cut(self._loop.name, start, data) if data else []
            position = start + len(data) if data else position
        done = gone and not reader.child.log.since(position)
        if done:
            pieces.append(Piece(self._loop.name, position, state="ended"))
        elif not reader.told:
            pieces = pieces or [Piece(self._loop.name, position)]
        if not pieces:
            return
        reader.sending = True

        def sent(_result: object, error: BaseException | None) -> None:
            reader.sending = False
            if error is not None:  # Redis is away: the same again at the next look
                return
            reader.told, reader.position = True, position
            if done:
                self._readers.pop(reader.id, None)

        port = self._loop.port
        self._loop.queue_lane.submit(lambda: port.show_output(reader.id, pieces), sent)
