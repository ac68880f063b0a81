"""Read what a trial has printed, wherever it ran: from a file of this host, or through the worker that has it."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from vrampool.errors import VrampoolError
from vrampool.queueing import Events, Outputs, Piece, Registry
from vrampool.queueing.outputs import COMMAND
from vrampool.settings import Settings, output_path
from vrampool.signing import load_secret
from vrampool.storage import attempt_of
from vrampool.storage.marks import claimed_by

#: A command may get lost, so it is sent again until the first answer,
AGAIN_S = 1.0
#: and from then on to be kept as a reader.
RENEW_S = 10.0
ANSWER_S = 10.0
_WAIT_S = 0.5


class TrialOutput:
    """The output of the trials of one pool.

    Args:
        settings: The pool's, with Redis filled in.
        connection: Redis.
    """

    def __init__(self, settings: Settings, connection: Any) -> None:
        self._settings = settings
        self._registry = Registry(connection, settings.pool)
        self._outputs = Outputs(connection, settings.pool)
        self._events = Events(connection, settings.pool, load_secret(settings, create=False))

    def read(self, study: str, trial: FrozenTrial, *, follow: bool = False) -> Iterator[bytes]:
        """Yield what is there of an attempt's output; with `follow` go on until the attempt has ended.

        What was there at the beginning comes in one part. A line says where some is left out.

        Raises:
            VrampoolError: no output is to be had; the text says where it lies, or why there is none.
        """
        if trial.state == TrialState.WAITING:
            raise VrampoolError(f"trial {trial.number} waits: it has printed nothing yet")
        if trial.state != TrialState.RUNNING and (path := self._local_file(study, trial)) is not None:
            yield path.read_bytes()
            return
        yield from self._from_worker(study, trial, follow)

    def _local_file(self, study: str, trial: FrozenTrial) -> Path | None:
        """Return the file where this host has it: that of a lost trial too, whose worker could tell no facts."""
        facts = attempt_of(trial)
        if facts is not None and facts.host != socket.gethostname():
            return None
        path = Path(facts.log) if facts is not None and facts.log else None
        path = path or output_path(self._settings.state_dir, study, trial.number)
        return path if path.is_file() else None

    def _from_worker(self, study: str, trial: FrozenTrial, follow: bool) -> Iterator[bytes]:
        reader = uuid.uuid4().hex
        asked = self._workers(trial)
        message = {"workers": asked, "id": reader, "study": study, "number": trial.number}
        missing: set[str] = set()
        position, after, answered = 0, "0", ""
        again_s, give_up_s = 0.0, time.monotonic() + ANSWER_S
        try:
            while True:
                now_s = time.monotonic()
                if now_s >= again_s:
                    self._events.command(COMMAND, **message)
                    again_s = now_s + (RENEW_S if answered else AGAIN_S)
                pieces, after = self._outputs.read(reader, after, wait_s=_WAIT_S)
                missing |= {piece.worker for piece in pieces if piece.state == "missing"}
                found = [piece for piece in pieces if piece.state != "missing"]
                if found:
                    answered = answered or found[0].worker
                found = [piece for piece in found if piece.worker == answered]  # those of one host share their files
                if data := b"".join(_new(found, position)):
                    position = max(piece.position + len(piece.data) for piece in found)
                    yield data
                if found and (not follow or found[-1].state == "ended"):
                    return
                if answered:
                    give_up_s = self._still_there(answered, give_up_s)
                if not answered and (missing >= set(asked) or time.monotonic() > give_up_s):
                    raise VrampoolError(self._why_not(trial, asked, missing))
                if answered and time.monotonic() > give_up_s:
                    raise VrampoolError(f"worker {answered} has gone, and with it the rest of the output")
        finally:
            self._outputs.forget(reader)

    def _still_there(self, worker: str, give_up_s: float) -> float:
        """Return until when to wait for a worker that says nothing: as long as it lives."""
        if time.monotonic() < give_up_s - ANSWER_S / 2:
            return give_up_s
        alive = any(record.name == worker for record in self._registry.workers())
        return time.monotonic() + ANSWER_S if alive else give_up_s

    def _workers(self, trial: FrozenTrial) -> list[str]:
        """Return the worker that ran it where it lives, else those of its host, else all: one may have the file."""
        facts = attempt_of(trial)
        records = self._registry.workers()
        name = facts.worker if facts is not None else claimed_by(trial)
        found = [record.name for record in records if record.name == name]
        found = found or [record.name for record in records if facts is not None and record.host == facts.host]
        if not found and facts is None:
            found = [record.name for record in records]
        if not found:
            raise VrampoolError(self._why_not(trial, [], set()))
        return found

    def _why_not(self, trial: FrozenTrial, asked: list[str], missing: set[str]) -> str:
        facts = attempt_of(trial)
        if facts is None and trial.state != TrialState.RUNNING and claimed_by(trial) is None:
            return f"trial {trial.number} never ran, so it printed nothing"
        where = f"; it lies in {facts.log} on {facts.host}" if facts is not None and facts.log else ""
        if not asked:
            host = f"host {facts.host}" if facts is not None else "the host it ran on"
            return f"no worker runs on {host}, so nobody can show the output of trial {trial.number}{where}"
        if missing >= set(asked):
            return f"the output of trial {trial.number} is not kept any more{where and ' where it was' + where}"
        silent = ", ".join(sorted(set(asked) - missing))
        return f"worker {silent} does not answer{where}"


def _new(pieces: Iterable[Piece], position: int) -> Iterator[bytes]:
    """Yield what is new: a piece that is sent again, because Redis was away for its answer, is not shown twice."""
    for piece in pieces:
        end = piece.position + len(piece.data)
        if end <= position:
            continue
        if piece.position > position:
            yield b"\n... %d bytes of output left out here ...\n" % (piece.position - position)
        yield piece.data[max(0, position - piece.position) :]
        position = end
