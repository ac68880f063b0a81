"""Messages that no holder of the pool's secret wrote, or not for this: nothing of them runs, and one line says why."""

from __future__ import annotations

import json
import pickle
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from optuna.trial import TrialState
from recovery.hardy import HardyPool
from recovery.processes import frozen
from security.forgeries import FORGERIES, NEVER_TAKEN, OTHER, RQ_FIELDS, Forger, Trap
from support.stepped_pool import SteppedPool, stepped_pool

import vrampool
from vrampool.consistency import Mender
from vrampool.errors import MessageError
from vrampool.messages import EndKind
from vrampool.queueing.jobs import payload_of
from vrampool.queueing.names import Names
from vrampool.signing import load_secret, open_spec
from vrampool.storage import attempt_of, cancelled_reason, schema

Stepped = Callable[..., AbstractContextManager[SteppedPool]]
COMPLETE, FAIL = TrialState.COMPLETE, TrialState.FAIL


def put(pool: HardyPool, job_id: str, fields: Mapping[str, Any]) -> None:
    """Put a job ahead of all others."""
    names = Names(pool.pool.settings.pool)
    pool.pool.connection.hset(names.job(job_id), mapping=dict(fields))
    pool.pool.connection.lpush(names.waiting, job_id)


def test_more_than_fifty_forged_jobs_run_nothing_and_the_good_one_behind_them_does(pool: HardyPool, tmp_path: Path):
    """All name its trial. Each is told in one line and leaves nothing; nobody else's trial is touched."""
    assert len(FORGERIES) >= 50
    signer = load_secret(pool.pool.settings, create=False)
    connection, names = pool.pool.connection, Names(pool.pool.settings.pool)
    traps = {}
    with pool.frozen_worker():
        handle = pool.submit("one")
        good = pool.await_job().job_id
        fields = connection.hgetall(names.job(good))
        ticket = signer.open_ticket(good, payload_of(fields[b"data"]))
        for number, (name, (forge, _)) in enumerate(FORGERIES.items(), start=100):
            job_id = f"{handle.id}-{number}"
            traps[name] = tmp_path / f"sprung-{number}"
            forged = forge(Forger(signer, job_id, ticket, fields[b"data"], traps[name]))
            numbered = {b"number": number, b"description": name}
            put(pool, job_id, {**fields, **numbered, **{key.encode(): value for key, value in forged.items()}})
        for name, make in RQ_FIELDS.items():
            connection.hset(names.job(good), name, make(tmp_path / f"sprung-{name}"))
    (trial,) = pool.await_end(handle)
    assert trial.state == COMPLETE
    assert pool.log.times("started") == {0: 1}, "once, by its own job"
    for number, (name, (_, words)) in enumerate(FORGERIES.items(), start=100):
        job_id = f"{handle.id}-{number}"
        assert words in refusal(pool, job_id), name
        assert not connection.exists(names.job(job_id)), name
    assert list(tmp_path.glob("sprung*")) == []
    assert "Traceback" not in pool.log_of("coordinator")
    pool.run_one()


def test_what_is_no_job_at_all_harms_no_other(pool: HardyPool):
    """Ids that are no text, keys of another type, requests that are no numbers: nobody takes them, all others run."""
    connection, names = pool.pool.connection, Names(pool.pool.settings.pool)
    strange: list[Any] = [
        b"\xff\xfe",
        "",
        "a b",
        "a:b",
        "x" * 1_000_000,
        "../../etc/passwd",
        "line\nbreak",
        "missing-1",
    ]
    with pool.frozen_worker():
        handle = pool.submit("one")
        good = pool.await_job().job_id
        fields = connection.hgetall(names.job(good))
        connection.lpush(names.waiting, *strange, "text-1", "list-1")
        connection.set(names.job("text-1"), "no hash")
        connection.rpush(names.job("list-1"), "no hash")
        for number, more in enumerate(NEVER_TAKEN.values()):
            put(pool, f"never-{number}", {**fields, **{key.encode(): value for key, value in more.items()}})
        assert [job.job_id for job in pool.pool.queue()].count(good) == 1, "who looks at the queue is not harmed either"
    (trial,) = pool.await_end(handle)
    assert trial.state == COMPLETE and pool.log.times("started") == {0: 1}
    pool.run_one()
    assert "Traceback" not in pool.log_of("worker") + pool.log_of("coordinator")
    left = {job_id.decode() for job_id in connection.lrange(names.waiting, 0, -1)}
    assert left == {f"never-{number}" for number in range(len(NEVER_TAKEN))}
    mender = Mender(pool.pool.settings, connection, pool.storage, load_secret(pool.pool.settings, create=False))
    mender.fix(mender.look())
    assert connection.lrange(names.waiting, 0, -1) == [], "`vrampool status --check --fix` clears them away"


@pytest.mark.parametrize("kind", ["text", "list"])
def test_something_else_under_a_jobs_own_name_is_replaced(pool: HardyPool, kind: str):
    connection, names = pool.pool.connection, Names(pool.pool.settings.pool)
    with pool.frozen_worker():
        handle = pool.submit("one")
        key = names.job(pool.await_job().job_id)
        connection.delete(key)
        connection.set(key, "x") if kind == "text" else connection.rpush(key, "x")
    (trial,) = pool.await_end(handle)
    assert trial.state == COMPLETE and pool.log.times("started") == {0: 1}


def test_what_is_no_job_at_either_end_of_the_list_stops_no_coordinator(stepped: Stepped):
    """It puts jobs among those that are there, by their priority."""
    with stepped() as pool:
        connection, names = pool.pool.connection, Names(pool.settings.pool)
        for job_id in ("list-1", "list-2"):
            connection.rpush(names.waiting, job_id)
            connection.rpush(names.job(job_id), "no hash")
        connection.rpush(names.waiting, b"\xff")
        handles = [pool.submit(lambda trial: 1.0, 2, priority=priority) for priority in (0, 5)]
        pool.drive(*handles)
        assert [trial.state for handle in handles for trial in handle.trials] == [COMPLETE] * 4


#: What anybody who may publish can send to the workers; RQ's own commands are not signed, see SECURITY.md.
RUBBISH: list[bytes] = [
    b"\xff\xfe\x00",
    b"",
    b"null",
    b"[]",
    b"{",
    b'{"command": ["drain"]}',
    b'{"command": "drain", "workers": [], "at": "now"}',
    b'{"kind": "poke", "state": {"a": []}}',
    b"v1:" + b"0" * 64 + b':{"command":"drain"}',
    pickle.dumps(Trap(Path("/nowhere/at/all"))),
    b"[" * 1_000_000,
    b'{"command": "os.system", "job_id": "x"}',
]


def test_messages_that_no_holder_of_the_secret_sent_move_no_worker(pool: HardyPool):
    """An unsigned, altered, old or replayed command is not obeyed, and whoever listens goes on listening."""
    connection, names = pool.pool.connection, Names(pool.pool.settings.pool)
    (worker,) = pool.pool.devices()
    signer = load_secret(pool.pool.settings, create=False)
    seconds, _ = connection.time()
    drain = {"command": "drain", "workers": [worker.name], "id": "x", "reason": "forged"}
    forged = [
        json.dumps({**drain, "at": seconds}).encode(),
        OTHER.sign_json("command", {**drain, "at": seconds}),
        signer.sign_json("command", {**drain, "at": seconds - 3600}),
        signer.sign_json("command", {**drain, "at": seconds + 3600}),
        signer.sign_json("command", drain),
        signer.sign_json("command", {**drain, "at": "now"}),
        signer.sign_json("job", {**drain, "at": seconds}),
        signer.sign_json("command", [drain]),
        signer.sign_json("command", {**drain, "at": seconds}).replace(b'"x"', b'"y"'),
    ]
    for message in [*forged, *RUBBISH]:
        connection.publish(names.events, message)
        connection.publish(f"rq:pubsub:{worker.name}", message if message in RUBBISH else b"{}")
    pool.run_one()
    assert [(device.name, device.state) for device in pool.pool.devices()] == [(worker.name, "ready")]
    assert "obeyed" not in pool.log_of("worker") and "drain: forged" not in pool.log_of("worker")


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


def alter_submission(pool: SteppedPool, handle: vrampool.Handle, text: str) -> None:
    with pool.pool.storage.database.transaction() as session:
        table = schema.submissions
        session.execute(sa.update(table).where(table.c.id == handle.id).values(spec_text=text))


def test_a_worker_that_can_trust_no_job_says_so_and_leaves_them_to_others(stepped: Stepped) -> None:
    """Its secret is another one, or its version older: thrown away and made anew they would circle for ever."""
    with stepped(workers=2) as pool:
        stranger, good = pool.workers
        stranger.port._signer = OTHER
        handle = pool.submit(nothing, 2, max_concurrent_trials=1)
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


def test_a_submission_that_was_altered_later_fails_the_trial_and_says_so(stepped: Stepped) -> None:
    """The coordinator has read it before; the worker has not."""
    with stepped() as pool:
        handle, other = pool.submit(nothing, 1), pool.submit(nothing, 1)
        pool.workers[0].tell_registry()
        pool.coordinator.turn()
        text = pool.coordinator._catalog.submission(other.id)
        assert text is not None
        alter_submission(pool, handle, text.spec_text)  # signed, but for the other one
        pool.drive(handle, other)
        (trial,) = handle.trials
        facts = attempt_of(trial)
        assert trial.state == FAIL and facts is not None and facts.end == EndKind.REFUSED
        assert "carries the text of submission" in facts.text
        assert other.state == "done"


def test_what_is_signed_says_what_it_is_for(stepped: Stepped) -> None:
    """The same secret signs submissions, jobs and bundles; none passes for another."""
    with stepped() as pool:
        handle = pool.submit(nothing, 1)
        row = pool.coordinator._catalog.submission(handle.id)
        assert row is not None
        signer = load_secret(pool.settings, create=False)
        with pytest.raises(MessageError):
            signer.open_json("job", row.spec_text.encode())
        assert open_spec(signer, handle.id, row.spec_text) == handle.spec
