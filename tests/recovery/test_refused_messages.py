"""Messages that no holder of the pool's secret wrote, or not for this: nothing of them runs, and one line says why."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import sqlite3
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from optuna.trial import TrialState
from recovery.hardy import HardyPool
from recovery.processes import frozen
from support.stepped_pool import stepped_pool
from support.waiting import until

from vrampool.messages import WIRE_VERSION, EndKind, Ticket
from vrampool.queueing.jobs import payload_of
from vrampool.queueing.names import Names
from vrampool.signing import Signer, load_secret
from vrampool.storage import attempt_of, cancelled_reason

COMPLETE, FAIL = TrialState.COMPLETE, TrialState.FAIL
STRANGER = Signer(b"a secret that this pool does not have")
Write = Callable[[Signer, str, Ticket, bytes], bytes]


class Trap:
    """Leaves a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self):
        return os.mkdir, (str(self._path),)


def forged(signer: Signer, job_id: str, ticket: Ticket, payload: bytes) -> bytes:
    return STRANGER.sign_ticket(job_id, ticket)


def altered(signer: Signer, job_id: str, ticket: Ticket, payload: bytes) -> bytes:
    assert payload.count(b'"wire":1') == 1
    return payload.replace(b'"wire":1', b'"wire":0')


def replayed(signer: Signer, job_id: str, ticket: Ticket, payload: bytes) -> bytes:
    return signer.sign_ticket(f"{ticket.submission_id}-{ticket.number + 1}", ticket)


def newer(signer: Signer, job_id: str, ticket: Ticket, payload: bytes) -> bytes:
    return signer.sign_ticket(job_id, dataclasses.replace(ticket, wire=WIRE_VERSION + 1))


def another_function(signer: Signer, job_id: str, ticket: Ticket, payload: bytes) -> bytes:
    return signer.sign_json("job", ["os.system", None, ["true"], {}])


def unsigned(signer: Signer, job_id: str, ticket: Ticket, payload: bytes) -> bytes:
    return json.dumps(ticket.to_json()).encode()


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (forged, "was altered, or signed with another secret"),
        (altered, "was altered, or signed with another secret"),
        (replayed, "it was replayed"),
        (newer, f"has wire format {WIRE_VERSION + 1}"),
        (another_function, "asks for the function 'os.system'"),
        (unsigned, "without a signature"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_ticket_that_is_not_what_the_coordinator_wrote_is_refused_and_the_trial_runs_by_a_good_one(
    pool: HardyPool, write: Write, words: str
):
    """The worker throws it away; the trial waits in the storage, so the coordinator writes its ticket again."""
    signer = load_secret(pool.pool.settings, create=False)
    connection = pool.pool.connection
    with pool.frozen_worker():
        handle = pool.submit("one")
        job_id = pool.await_job().job_id
        key = Names(pool.pool.settings.pool).job(job_id)
        payload = payload_of(connection.hget(key, "data"))
        written = write(signer, job_id, signer.open_ticket(job_id, payload), payload)
        connection.hset(key, "data", zlib.compress(written))
    refused_in_one_line(pool, words)
    (trial,) = pool.await_end(handle)
    assert trial.state == COMPLETE
    assert pool.log.times("started") == {0: 1}


def test_a_pickle_in_the_queue_is_not_opened(pool: HardyPool, tmp_path: Path):
    """RQ's own workers would open it; whoever may write to Redis could then run what he likes."""
    sprung = tmp_path / "sprung"
    names = Names(pool.pool.settings.pool)
    fields = {
        "data": zlib.compress(pickle.dumps(Trap(sprung))),
        "vram_bytes": 1,
        "submission": "somebody",
        "number": 0,
        "queued_at_ms": 0,
    }
    pool.pool.connection.hset(names.job("somebody-0"), mapping=fields)
    pool.pool.connection.rpush(names.waiting, "somebody-0")
    pool.run_one()
    refused_in_one_line(pool, "without a signature")
    assert not sprung.exists()
    assert not pool.pool.connection.exists(names.job("somebody-0"))


def refused_in_one_line(pool: HardyPool, words: str) -> None:
    def lines() -> list[str]:
        return [line for line in pool.log_of("worker").splitlines() if "refused" in line]

    until(lines, what="a word of the worker")
    assert len(lines()) == 1 and words in lines()[0]
    assert "Traceback" not in pool.log_of("worker")


# ---- in the database -----------------------------------------------------------------------------------


def change(database: Path, statement: str, *values: object) -> None:
    """Change exactly one row, by hand."""
    with sqlite3.connect(database, timeout=30) as connection:
        assert connection.execute(statement, values).rowcount == 1
    connection.close()


def test_a_submission_that_was_altered_in_the_database_is_refused_and_says_so(pool: HardyPool):
    with frozen(pool.processes.coordinator()):
        handle = pool.submit("one")
        spec = "spec_text = replace(spec_text, '\"n_trials\":1', '\"n_trials\":9')"
        change(pool.database, f"UPDATE vrampool_submissions SET {spec} WHERE id = ?", handle.id)
    handle.wait(30)
    assert handle.state == "failed"
    assert handle.reason.startswith("refused: the signature of a submission does not match")
    assert pool.trials(handle) == [] and pool.log.started == 0
    assert sum("is refused" in line for line in pool.log_of("coordinator").splitlines()) == 1
    pool.run_one()
    with pytest.warns(UserWarning, match="is left out: the signature of a submission"):
        assert pool.pool.handles(), "one row that cannot be read hides no other"


def test_a_bundle_that_was_altered_in_the_database_fails_its_trials_and_says_why(pool: HardyPool):
    log = pool.log.path

    def bundled(trial):
        log.write_text("started 0 0\n")
        return 1.0

    with pool.frozen_worker():
        handle = pool.pool.submit(bundled, 2, vram="60MiB")
        digest = handle.spec.objective.bundle_sha256
        change(pool.database, "UPDATE vrampool_bundles SET body = CAST(body || x'00' AS BLOB) WHERE sha256 = ?", digest)
        pool.await_job()
    trials = pool.await_end(handle)
    assert [trial.state for trial in trials] == [FAIL, FAIL]
    assert pool.log.started == 0
    for trial in trials:
        facts = attempt_of(trial)
        assert facts is not None and facts.end == EndKind.REFUSED
        assert facts.text.startswith("the objective's bundle is refused: the signature of a bundle does not match")
    pool.run_one()


def nothing(trial):
    return 1.0


def test_what_waits_and_runs_of_a_submission_that_was_altered_later_comes_to_an_end(valkey: str, tmp_path: Path):
    """A coordinator that starts later cannot open it: what waits is ended and told why, what runs ends by itself."""
    with stepped_pool(valkey, tmp_path, slots=2) as pool:
        handle = pool.submit(nothing, 3)
        worker = pool.workers[0]
        worker.tell_registry()
        pool.coordinator.turn()
        taken = worker.take()
        assert taken is not None
        pool.coordinator.turn()
        states = [trial.state for trial in handle.trials]
        assert states[0] == TrialState.RUNNING and TrialState.WAITING in states
        database = Path(str(pool.settings.storage).removeprefix("sqlite:///"))
        change(database, "UPDATE vrampool_submissions SET spec_text = 'x' || spec_text WHERE id = ?", handle.id)
        pool.restart_coordinator()
        pool.coordinator.turn()
        pool.coordinator.turn()
        waited = handle.trials[1]
        assert waited.state == FAIL and str(cancelled_reason(waited)).startswith("refused: ")
        assert handle.trials[0].state == TrialState.RUNNING
        assert (handle.state, handle.reason[:8]) == ("failing", "refused:")
        pool.coordinator._reaper.lost = lambda running, now_s: list(running)
        pool.coordinator._reaped_at_s = -1e9
        pool.coordinator.turn()
        pool.coordinator.turn()
        assert handle.trials[0].state == FAIL
        assert handle.state == "failed"
