"""Messages that are not what they were signed as: refused with one line, and the trial's people learn why."""

from __future__ import annotations

import os
import signal
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from optuna.trial import TrialState
from parity import objectives
from support.pools import LivePool
from support.stepped_pool import SteppedPool
from support.waiting import until

import vrampool
from vrampool.errors import MessageError
from vrampool.messages import ENTRY_POINT, AttemptFacts
from vrampool.queueing.names import Names
from vrampool.signing import Signer, load_secret, open_spec
from vrampool.storage import attempt_of, schema

Stepped = Callable[..., AbstractContextManager[SteppedPool]]
COMPLETE, FAIL, WAITING = TrialState.COMPLETE, TrialState.FAIL, TrialState.WAITING
OTHER = Signer(b"somebody else's secret, long enough")


def alter(pool: Any, change: Callable[[Signer, str, bytes], bytes]) -> str:
    """Change the payload of the job that waits, in Redis, where anybody with a connection can. Returns its id."""
    connection, settings = pool.connection, pool.settings
    names = Names(settings.pool)
    job_id = connection.lindex(names.waiting, 0).decode()
    payload = zlib.decompress(connection.hget(names.job(job_id), "data"))
    changed = change(load_secret(settings, create=False), job_id, payload)
    connection.hset(names.job(job_id), "data", zlib.compress(changed))
    return str(job_id)


def unsigned(signer: Signer, job_id: str, payload: bytes) -> bytes:
    return payload.split(b":", 2)[2]


def altered(signer: Signer, job_id: str, payload: bytes) -> bytes:
    return payload.replace(b'"trial_id":', b'"trial_id":1')


def signed_by_another(signer: Signer, job_id: str, payload: bytes) -> bytes:
    return OTHER.sign_json("job", signer.open_json("job", payload))


def replayed(signer: Signer, job_id: str, payload: bytes) -> bytes:
    ticket = replace(signer.open_ticket(job_id, payload), number=999)
    return signer.sign_ticket(f"{ticket.submission_id}-999", ticket)


def newer(signer: Signer, job_id: str, payload: bytes) -> bytes:
    return signer.sign_ticket(job_id, replace(signer.open_ticket(job_id, payload), wire=99))


def another_function(signer: Signer, job_id: str, payload: bytes) -> bytes:
    assert ENTRY_POINT.encode() in payload
    return signer.sign_json("job", ["os.system", None, [job_id, {}], {}])


FORGERIES = [
    (unsigned, "without a signature"),
    (altered, "it was altered"),
    (signed_by_another, "signed with another secret"),
    (replayed, "it was replayed"),
    (newer, "wire format 99, this side knows 1; upgrade"),
    (another_function, "only vrampool_worker.child.run_trial may be called"),
]


@pytest.mark.parametrize(("change", "words"), FORGERIES, ids=[change.__name__ for change, _ in FORGERIES])
def test_a_job_that_was_tampered_with_is_refused_and_made_anew(stepped: Stepped, change: Any, words: str) -> None:
    """Nothing of it is run; the trial is, by the job that the coordinator makes again."""
    with stepped() as pool:
        handle = pool.submit(objectives.number, 1)
        pool.workers[0].tell_registry()
        pool.coordinator.turn()
        alter(pool.pool, change)
        with pytest.raises(MessageError, match=words):
            pool.workers[0].take()
        assert [trial.state for trial in handle.trials] == [WAITING] and pool.workers[0].take() is None
        pool.reconcile()
        pool.drive(handle)
        assert [trial.state for trial in handle.trials] == [COMPLETE]


def test_a_worker_that_can_trust_no_job_says_so_and_leaves_them_to_others(stepped: Stepped) -> None:
    """Its secret is another one, or its version older: thrown away and made anew they would circle for ever."""
    with stepped(workers=2) as pool:
        stranger, good = pool.workers
        stranger.port._signer = OTHER
        handle = pool.submit(objectives.number, 2, max_concurrent_trials=1)
        stranger.tell_registry()
        pool.coordinator.turn()
        for _ in range(2):
            with pytest.raises(MessageError, match="another secret"):
                stranger.take()
            pool.reconcile()
        assert list(stranger.port.refused) == [handle.id]
        assert "another secret" in stranger.port.refused[handle.id]
        assert len(pool.pool.queue()) == 1 and stranger.take() is None, "it is not offered that job again"
        pool.workers = [good]
        pool.drive(handle)
        assert [trial.state for trial in handle.trials] == [COMPLETE] * 2


def change_submission(pool: vrampool.Pool, handle: vrampool.Handle, text: str) -> None:
    with pool.storage.database.transaction() as session:
        table = schema.submissions
        session.execute(sa.update(table).where(table.c.id == handle.id).values(spec_text=text))


def facts_of(handle: vrampool.Handle) -> AttemptFacts:
    (trial,) = handle.trials
    facts = attempt_of(trial)
    assert trial.state == FAIL and facts is not None and facts.end == "refused"
    return facts


def test_a_submission_that_was_altered_in_the_database_fails_and_says_so(stepped: Stepped) -> None:
    with stepped() as pool:
        handle, other = pool.submit(objectives.number, 1), pool.submit(objectives.number, 1)
        text = pool.coordinator._catalog.submission(handle.id)
        assert text is not None
        change_submission(pool.pool, handle, text.spec_text.replace('"oom":"auto"', '"oom":"user"'))
        pool.drive(handle, other)
        assert handle.state == "failed" and "it was altered" in handle.reason and handle.trials == []
        assert other.state == "done", "the coordinator goes on"


def test_a_submission_that_was_altered_later_fails_the_trial_and_says_so(stepped: Stepped) -> None:
    """The coordinator has read it before; the worker has not."""
    with stepped() as pool:
        handle, other = pool.submit(objectives.number, 1), pool.submit(objectives.number, 1)
        pool.workers[0].tell_registry()
        pool.coordinator.turn()
        text = pool.coordinator._catalog.submission(other.id)
        assert text is not None
        change_submission(pool.pool, handle, text.spec_text)  # signed, but for the other one
        pool.drive(handle, other)
        assert "carries the text of submission" in facts_of(handle).text
        assert other.state == "done"


def test_a_bundle_that_was_altered_fails_the_trial_and_says_so(stepped: Stepped) -> None:
    with stepped() as pool:
        handle = pool.pool.submit(lambda trial: 1.0, 1, vram="10MiB")
        table = schema.bundles
        with pool.pool.storage.database.transaction() as session:
            body = session.scalar(sa.select(table.c.body))
            session.execute(sa.update(table).values(body=bytes(body) + b"\0"))
        pool.drive(handle)
        assert "bundle is refused" in facts_of(handle).text and "it was altered" in facts_of(handle).text


def test_what_is_signed_says_what_it_is_for(stepped: Stepped) -> None:
    """The same secret signs submissions, jobs and bundles; none passes for another."""
    with stepped() as pool:
        handle = pool.submit(objectives.number, 1)
        row = pool.coordinator._catalog.submission(handle.id)
        assert row is not None
        signer = load_secret(pool.settings, create=False)
        with pytest.raises(MessageError):
            signer.open_json("job", row.spec_text.encode())
        assert open_spec(signer, handle.id, row.spec_text) == handle.spec


# ---- through real processes --------------------------------------------------------------------------


def test_a_worker_refuses_a_forged_job_with_one_line_in_its_log(pool: LivePool) -> None:
    log = pool.state_dir / "logs" / "worker.log"

    def lines() -> list[str]:
        return [line for line in log.read_text(errors="replace").splitlines() if "a job was refused" in line]

    before = len(lines())
    worker = until(lambda: [device.pid for device in pool.devices() if device.free_bytes], what="a ready worker")[0]
    os.kill(worker, signal.SIGSTOP)  # so that the job waits
    try:
        handle = pool.submit(objectives.number, 1)
        until(pool.pool.queue, what="a waiting trial", timeout_s=2.5)
        alter(pool.pool, altered)
    finally:
        os.kill(worker, signal.SIGCONT)
    handle.wait(60)
    assert [trial.state for trial in handle.trials] == [COMPLETE]
    (line,) = lines()[before:]
    assert "ERROR vrampool.worker: a job was refused: " in line
    assert "the signature of a job does not match" in line
