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

from vrampool.messages import ENTRY_POINT, WIRE_VERSION, EndKind, Ticket
from vrampool.queueing.jobs import payload_of
from vrampool.queueing.names import Names
from vrampool.signing import Signer, load_secret
from vrampool.storage import attempt_of, cancelled_reason

COMPLETE, FAIL = TrialState.COMPLETE, TrialState.FAIL
STRANGER = Signer(b"a secret that this pool does not have")
Write = Callable[[Signer, str, Ticket], bytes]


class Trap:
    """Leaves a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self):
        return os.mkdir, (str(self._path),)


def unsigned(signer: Signer, job_id: str, ticket: Ticket) -> bytes:
    return json.dumps(ticket.to_json()).encode()


def forged(signer: Signer, job_id: str, ticket: Ticket) -> bytes:
    return STRANGER.sign_ticket(job_id, ticket)


def altered(signer: Signer, job_id: str, ticket: Ticket) -> bytes:
    signed = signer.sign_ticket(job_id, ticket)
    assert signed.count(b'"wire":1') == 1
    return signed.replace(b'"wire":1', b'"wire":0')


def replayed(signer: Signer, job_id: str, ticket: Ticket) -> bytes:
    """The very words that the coordinator wrote for another job."""
    return signer.sign_ticket(f"{ticket.submission_id}-{ticket.number}", ticket)


def newer(signer: Signer, job_id: str, ticket: Ticket) -> bytes:
    return signer.sign_ticket(job_id, dataclasses.replace(ticket, wire=WIRE_VERSION + 1))


def of_another_trial(signer: Signer, job_id: str, ticket: Ticket) -> bytes:
    return signer.sign_json("job", [ENTRY_POINT, None, [job_id, ticket.to_json()], {}])


def of_another_function(signer: Signer, job_id: str, ticket: Ticket) -> bytes:
    return signer.sign_json("job", ["os.system", None, [job_id, ticket.to_json()], {}])


#: How a bad ticket is written, and what is said of it.
BAD: list[tuple[Write, str]] = [
    (unsigned, "without a signature"),
    (forged, "was altered, or signed with another secret"),
    (altered, "was altered, or signed with another secret"),
    (replayed, "it was replayed"),
    (newer, f"has wire format {WIRE_VERSION + 1}"),
    (of_another_trial, "carries the ticket of trial 0"),
    (of_another_function, "asks for the function 'os.system'"),
]


def test_tickets_that_the_coordinator_did_not_write_run_nothing_and_the_good_one_behind_them_does(pool: HardyPool):
    """All are put into Redis by hand, ahead of the good one, and name its trial; each is told in one line."""
    signer = load_secret(pool.pool.settings, create=False)
    connection, names = pool.pool.connection, Names(pool.pool.settings.pool)
    with pool.frozen_worker():
        handle = pool.submit("one")
        good = pool.await_job().job_id
        ticket = signer.open_ticket(good, payload_of(connection.hget(names.job(good), "data")))
        fields = connection.hgetall(names.job(good))
        for number, (write, _) in enumerate(BAD, start=100):
            job_id = f"{handle.id}-{number}"
            written = {b"data": zlib.compress(write(signer, job_id, ticket))}
            connection.hset(names.job(job_id), mapping={**fields, **written})
            connection.lpush(names.waiting, job_id)
    (trial,) = pool.await_end(handle)
    assert trial.state == COMPLETE
    assert pool.log.times("started") == {0: 1}
    for number, (_, words) in enumerate(BAD, start=100):
        assert words in refusal(pool, f"{handle.id}-{number}")
        assert not connection.exists(names.job(f"{handle.id}-{number}"))


def test_a_trial_whose_ticket_was_altered_runs_by_another_one(pool: HardyPool):
    """The worker throws it away; the trial waits in the storage, so the coordinator writes its ticket again."""
    connection, names = pool.pool.connection, Names(pool.pool.settings.pool)
    with pool.frozen_worker():
        handle = pool.submit("one")
        job_id = pool.await_job().job_id
        connection.hset(names.job(job_id), "vram_bytes", 1)
    (trial,) = pool.await_end(handle)
    assert trial.state == COMPLETE
    assert pool.log.times("started") == {0: 1}
    assert "its fields differ from its signed ticket" in refusal(pool, job_id)


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
    assert "without a signature" in refusal(pool, "somebody-0")
    assert not sprung.exists()
    assert not pool.pool.connection.exists(names.job("somebody-0"))


def refusal(pool: HardyPool, job_id: str) -> str:
    """Return the one line in which the worker refused a job."""
    lines = [line for line in pool.log_of("worker").splitlines() if job_id in line and "refused" in line]
    assert len(lines) == 1, lines
    assert "Traceback" not in pool.log_of("worker")
    return lines[0]


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
