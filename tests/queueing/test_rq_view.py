"""What RQ's own tools see of our trials, and what they may do to them."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from rq import Queue
from rq.exceptions import DeserializationError
from rq.executions import Execution
from rq.intermediate_queue import IntermediateQueue
from rq.job import Job, JobStatus
from rq.registry import FailedJobRegistry, FinishedJobRegistry, StartedJobRegistry
from rq.worker import SimpleWorker
from support.valkey import SIGNER, count_round_trips, ticket

from vrampool.messages import ENTRY_POINT
from vrampool.queueing import (
    JobQueue,
    Liveness,
    Offer,
    SignedSerializer,
    begin,
    finish,
    give_back,
    put_back,
    renew,
    take,
)
from vrampool.queueing.names import Names

SERIALIZER = SignedSerializer(SIGNER)


@pytest.fixture
def queue(connection, pool) -> JobQueue:
    return JobQueue(connection, pool, SIGNER)


@pytest.fixture
def rq_queue(connection, pool) -> Queue:
    return Queue(pool, connection=connection, serializer=SERIALIZER)


@pytest.fixture
def worker(rq_queue, connection):
    """A registered RQ worker of our queue: its hash, and its maintenance."""
    worker = SimpleWorker([rq_queue], name="w1", connection=connection, serializer=SERIALIZER)
    worker.register_birth()
    return worker


def take_one(connection, pool, lease_id: str = "L1", worker: str = "w1"):
    offer = Offer(worker, lease_id, 10**12, idle=True, ttl_ms=6_000, device_id="GPU-a", device_kind="cuda")
    return take(connection, pool, offer)


def begin_one(queue, connection, pool, number: int = 1, worker: str = "w1") -> tuple[str, str]:
    """Enqueue, take and begin one trial; return its job id and its execution's id."""
    queue.enqueue([ticket(pool, number)])
    taken = take_one(connection, pool, f"L{number}", worker)
    return taken.job_id, begin(connection, pool, taken.job_id, worker, 30)


def rq_info(valkey: str, *options: str) -> str:
    command = [str(Path(sys.executable).with_name("rq")), "info", "--url", valkey, "--raw", *options]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


# ---- reading ---------------------------------------------------------------------------------------


def test_rq_reads_a_waiting_trial_as_a_job(queue, rq_queue, connection, pool):
    queue.enqueue([ticket(pool, 1), ticket(pool, 2)])
    first = rq_queue.get_jobs()[0]
    assert [job.id for job in rq_queue.get_jobs()] == ["sub1-1", "sub1-2"]
    assert first.get_status() == JobStatus.QUEUED and first.description == "digits/1" and first.origin == pool
    assert first.func_name == ENTRY_POINT and first.args == ["sub1-1", ticket(pool, 1).to_json()]
    assert first.enqueued_at is not None and (first.timeout, first.ttl, first.result_ttl) == (-1, None, 500)
    assert rq_queue.get_job_position("sub1-2") == 1 and rq_queue in Queue.all(connection)


def test_reading_a_job_with_rq_s_own_serializer_unpickles_nothing(queue, connection, pool):
    """`rq info` and dashboards fetch jobs with pickle; there must be nothing in ours that they would load."""
    job_id, execution_id = begin_one(queue, connection, pool)
    finish(connection, pool, job_id, "w1", execution_id, "failed", "boom")
    job = Job.fetch(job_id, connection=connection)
    assert job.get_status() == JobStatus.FAILED and job.meta == {} and not connection.hexists(job.key, "meta")


def test_a_tampered_job_is_not_readable_for_rq_either(queue, connection, pool):
    queue.enqueue([ticket(pool, 1)])
    connection.hset("rq:job:sub1-1", "data", b"v1:" + b"0" * 64 + b':["os.system",null,["true"],{}]')
    job = Job.fetch("sub1-1", connection=connection, serializer=SERIALIZER)
    with pytest.raises(DeserializationError):
        _ = job.func_name


def test_an_rq_worker_accepts_the_serializer(worker):
    assert worker.serializer is SERIALIZER


def test_rq_info_shows_waiting_running_and_ended_trials(queue, connection, pool, valkey, worker):
    job_id, execution_id = begin_one(queue, connection, pool, 1)
    finish(connection, pool, job_id, "w1", execution_id, "finished", run_s=2.5)
    job_id, execution_id = begin_one(queue, connection, pool, 2)
    finish(connection, pool, job_id, "w1", execution_id, "failed", "boom", run_s=0.5)
    begin_one(queue, connection, pool, 3)
    queue.enqueue([ticket(pool, n) for n in (4, 5)])
    text = rq_info(valkey)
    assert f"queue {pool} 2, 1 executing, 1 finished, 1 failed" in text
    assert "worker w1 " in text and "jobs: 1 finished, 1 failed" in text
    worker.refresh()
    assert worker.total_working_time == pytest.approx(3.0)


# ---- begin -----------------------------------------------------------------------------------------


def test_begin_moves_the_job_from_the_intermediate_list_to_rq_s_started_registry(queue, connection, pool, worker):
    job_id, execution_id = begin_one(queue, connection, pool)
    job = Job.fetch(job_id, connection=connection, serializer=SERIALIZER)
    registry = StartedJobRegistry(pool, connection=connection)
    assert job.get_status() == JobStatus.STARTED and job.worker_name == "w1" and job.started_at is not None
    assert registry.get_job_and_execution_ids() == [(job_id, execution_id)] and job_id in registry
    assert [execution.id for execution in job.get_executions()] == [execution_id]
    assert [(e.id, e.job_id) for e in worker.get_current_executions(refresh=True)] == [(execution_id, job_id)]
    assert connection.llen(Names(pool).intermediate) == 0 and connection.ttl(job.key) == -1


def test_begin_takes_the_job_out_of_the_waiting_list_too(queue, connection, pool):
    """The worker was slow to claim, its lease ran out, and the trial was enqueued again behind its back."""
    names = Names(pool)
    queue.enqueue([ticket(pool, 1)])
    take_one(connection, pool)
    connection.delete(names.live("sub1-1"))
    queue.enqueue([ticket(pool, 1)])
    assert begin(connection, pool, "sub1-1", "w1", 30) is not None
    assert connection.llen(names.waiting) == 0


def test_a_job_with_an_end_set_by_somebody_else_lasts_while_it_runs_or_waits(queue, connection, pool):
    """RQ's clean-up sets a date for the hash of a job that it thought stuck or abandoned."""
    key = Names(pool).job("sub1-1")
    queue.enqueue([ticket(pool, 1)])
    take_one(connection, pool)
    connection.expire(key, 500)
    execution_id = begin(connection, pool, "sub1-1", "w1", 30)
    assert connection.ttl(key) == -1
    connection.expire(key, 500)
    give_back(connection, pool, "sub1-1", "w1", execution_id)
    assert connection.ttl(key) == -1


# ---- renew -----------------------------------------------------------------------------------------


def test_renew_keeps_every_key_of_a_running_trial_alive(queue, connection, pool):
    job_id, execution_id = begin_one(queue, connection, pool)
    before = Execution.fetch(execution_id, job_id, connection)
    renew(connection, pool, "w1", [(job_id, execution_id)], 90)
    after = Execution.fetch(execution_id, job_id, connection)
    assert connection.ttl(after.key) > 60 and connection.ttl(f"rq:executions:{job_id}") > 60
    assert connection.zscore(Names(pool).started, f"{job_id}:{execution_id}") > time.time() + 60
    assert after.created_at == before.created_at and after.last_heartbeat > before.last_heartbeat


def test_renew_writes_everything_again_after_redis_came_back_empty(queue, connection, pool, valkey, worker):
    """RQ's own heartbeat would leave half an execution, which breaks `rq info` and every monitor."""
    held = [begin_one(queue, connection, pool, number) for number in (1, 2)]
    connection.flushall()
    worker.register_birth()
    renew(connection, pool, "w1", held, 30)
    assert {(e.job_id, e.id) for e in worker.get_current_executions(refresh=True)} == set(held)
    assert sorted(StartedJobRegistry(pool, connection=connection).get_job_and_execution_ids()) == sorted(held)
    assert all(Execution.fetch(execution_id, job_id, connection).worker_name == "w1" for job_id, execution_id in held)
    queue.enqueue([ticket(pool, 9)])
    assert f"queue {pool} 1, 2 executing" in rq_info(valkey)


def test_a_trial_that_rq_called_abandoned_by_mistake_is_whole_again(queue, connection, pool):
    """The worker was silent for longer than RQ waits, and somebody ran `rq info`."""
    job_id, execution_id = begin_one(queue, connection, pool)
    StartedJobRegistry(pool, connection=connection).cleanup(timestamp=time.time() + 1_000)
    assert Job.fetch(job_id, connection=connection).get_status() == JobStatus.FAILED
    renew(connection, pool, "w1", [(job_id, execution_id)], 30)
    names = Names(pool)
    assert connection.ttl(names.job(job_id)) == -1 and connection.zscore(names.failed, job_id) is None
    assert finish(connection, pool, job_id, "w1", execution_id, "finished") is True
    assert Job.fetch(job_id, connection=connection).get_status() == JobStatus.FINISHED
    assert connection.zscore(names.failed, job_id) is None


# ---- finish ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "status", "registry"),
    [
        ("finished", JobStatus.FINISHED, FinishedJobRegistry),
        ("failed", JobStatus.FAILED, FailedJobRegistry),
        ("stopped", JobStatus.STOPPED, FailedJobRegistry),
    ],
)
def test_an_ended_job_is_shown_for_a_while_and_then_everything_of_it_ends(
    queue, connection, pool, worker, outcome, status, registry
):
    names = Names(pool)
    job_id, execution_id = begin_one(queue, connection, pool)
    assert finish(connection, pool, job_id, "w1", execution_id, outcome, "killed by signal 9") is True
    job = Job.fetch(job_id, connection=connection, serializer=SERIALIZER)
    assert job.get_status() == status and job.ended_at is not None
    assert registry(pool, connection=connection).get_job_ids() == [job_id]
    assert job.latest_result().exc_string == (None if outcome == "finished" else "killed by signal 9")
    assert 0 < connection.ttl(job.key) <= 500 and not connection.exists(names.live(job_id))
    assert worker.get_current_executions(refresh=True) == [] and connection.zcard(names.started) == 0
    lasting = {key.decode() for key in connection.keys("*") if connection.ttl(key) == -1}
    assert lasting == {"rq:queues", "rq:workers", f"rq:workers:{pool}"}, "everything else has an end"


def test_an_end_that_is_told_twice_counts_once(queue, connection, pool, worker):
    job_id, execution_id = begin_one(queue, connection, pool)
    for _ in range(2):
        assert finish(connection, pool, job_id, "w1", execution_id, "finished", run_s=1.0) is True
    worker.refresh()
    assert (worker.successful_job_count, worker.total_working_time) == (1, 1.0)


def test_an_end_told_after_redis_came_back_empty_leaves_no_half_job(queue, connection, pool):
    job_id, execution_id = begin_one(queue, connection, pool)
    connection.flushall()
    finish(connection, pool, job_id, "w1", execution_id, "finished")
    left = {key.decode() for key in connection.keys("*")}
    assert left <= {f"vrampool:{pool}:once:{execution_id}"}, "no hash of a job, and no worker without its name"


def test_the_end_told_by_a_worker_that_lost_the_job_changes_nothing_for_its_new_holder(queue, connection, pool):
    names = Names(pool)
    job_id, old = begin_one(queue, connection, pool, worker="frozen")
    connection.delete(names.live(job_id))
    queue.enqueue([ticket(pool, 1)])
    take_one(connection, pool, "L2", "w2")
    new = begin(connection, pool, job_id, "w2", 30)
    assert finish(connection, pool, job_id, "frozen", old, "failed", "too late") is False
    assert give_back(connection, pool, job_id, "frozen", old) is False
    assert connection.get(names.live(job_id)) == b"w2" and queue.waiting() == []
    assert Job.fetch(job_id, connection=connection).get_status() == JobStatus.STARTED
    assert StartedJobRegistry(pool, connection=connection).get_job_and_execution_ids() == [(job_id, new)]


def test_old_entries_leave_the_registries_without_anybody_s_maintenance(queue, connection, pool):
    names = Names(pool)
    connection.zadd(names.finished, {"old": time.time() - 10})
    job_id, execution_id = begin_one(queue, connection, pool)
    finish(connection, pool, job_id, "w1", execution_id, "finished")
    assert connection.zrange(names.finished, 0, -1) == [job_id.encode()]
    assert 0 < connection.ttl(names.finished) <= 600


# ---- give back -------------------------------------------------------------------------------------


def test_a_job_given_back_is_the_next_to_be_taken(queue, connection, pool, worker):
    names = Names(pool)
    job_id, execution_id = begin_one(queue, connection, pool, 1)
    queue.enqueue([ticket(pool, 2)])
    assert give_back(connection, pool, job_id, "w1", execution_id) is True
    job = Job.fetch(job_id, connection=connection, serializer=SERIALIZER)
    assert job.get_status() == JobStatus.QUEUED and not job.worker_name and job.started_at is None
    assert [waiting.number for waiting in queue.waiting()] == [1, 2]
    assert connection.zcard(names.started) == 0 and not connection.exists(names.live(job_id))
    assert worker.get_current_executions(refresh=True) == []
    assert take_one(connection, pool, "L9", "w2").job_id == job_id


def test_a_job_given_back_twice_waits_once(queue, connection, pool):
    job_id, execution_id = begin_one(queue, connection, pool)
    give_back(connection, pool, job_id, "w1", execution_id)
    give_back(connection, pool, job_id, "w1", execution_id)
    assert connection.lrange(Names(pool).waiting, 0, -1) == [job_id.encode()]


def test_the_lease_of_a_job_given_back_is_worth_nothing_any_more(queue, connection, pool):
    job_id, execution_id = begin_one(queue, connection, pool)  # taken with the lease L1
    give_back(connection, pool, job_id, "w1", execution_id)
    assert put_back(connection, pool, job_id, "L1") is False
    assert take_one(connection, pool, "L1") is None, "an old answer, not a new take"
    assert take_one(connection, pool, "L2").job_id == job_id


# ---- RQ's own clean-up -----------------------------------------------------------------------------


def first_seen_long_ago(connection, pool, job_id: str) -> bool:
    """Make RQ believe that it first saw the job in the intermediate list two minutes ago; False if it has not."""
    key = Names(pool).first_seen_prefix + job_id
    return bool(connection.set(key, time.time() - 120, xx=True))


def test_rq_s_clean_up_does_not_harm_a_trial_whose_claim_takes_long(queue, rq_queue, connection, pool, worker):
    """The database was away for minutes between take and begin, and beats went on."""
    names = Names(pool)
    queue.enqueue([ticket(pool, 1)])
    take_one(connection, pool)
    intermediate = IntermediateQueue(rq_queue.key, connection)
    for _ in range(3):
        intermediate.cleanup(worker, rq_queue)
        assert first_seen_long_ago(connection, pool, "sub1-1"), "RQ looked at it"
        assert Liveness(connection, pool).renew({"sub1-1": "w1"}, 6_000) == []
    intermediate.cleanup(worker, rq_queue)
    assert connection.hget(names.job("sub1-1"), "status") == b"queued"
    assert connection.lrange(names.intermediate, 0, -1) == [b"sub1-1"]
    assert connection.get(names.live("sub1-1")) == b"w1"


def test_rq_s_clean_up_of_a_silent_worker_s_job_is_mended_by_enqueueing_it_again(
    queue, rq_queue, connection, pool, worker
):
    names = Names(pool)
    queue.enqueue([ticket(pool, 1)])
    take_one(connection, pool)
    connection.delete(names.live("sub1-1"))
    intermediate = IntermediateQueue(rq_queue.key, connection)
    intermediate.cleanup(worker, rq_queue)
    assert first_seen_long_ago(connection, pool, "sub1-1")
    intermediate.cleanup(worker, rq_queue)
    assert connection.hget(names.job("sub1-1"), "status") == b"failed", "without beats RQ gives it up"
    assert queue.known(["sub1-1"]) == set()
    assert queue.enqueue([ticket(pool, 1)]) == ["sub1-1"]
    assert connection.zscore(names.failed, "sub1-1") is None and connection.ttl(names.job("sub1-1")) == -1
    assert take_one(connection, pool, "L2").job_id == "sub1-1"


def test_rq_s_clean_up_leaves_a_begun_trial_alone(queue, rq_queue, connection, pool, worker):
    job_id, _ = begin_one(queue, connection, pool)
    connection.rpush(Names(pool).intermediate, job_id)  # even if its id were still there
    for _ in range(3):
        IntermediateQueue(rq_queue.key, connection).cleanup(worker, rq_queue)
        first_seen_long_ago(connection, pool, job_id)
    worker.run_maintenance_tasks()
    assert Job.fetch(job_id, connection=connection).get_status() == JobStatus.STARTED


def test_a_second_passage_is_not_called_stuck_because_of_the_first(queue, rq_queue, connection, pool, worker):
    """RQ remembers for a day when it first saw a job in the intermediate list."""
    queue.enqueue([ticket(pool, 1)])
    take_one(connection, pool)
    intermediate = IntermediateQueue(rq_queue.key, connection)
    intermediate.cleanup(worker, rq_queue)
    assert first_seen_long_ago(connection, pool, "sub1-1")
    put_back(connection, pool, "sub1-1", "L1")
    take_one(connection, pool, "L2")
    intermediate.cleanup(worker, rq_queue)
    assert connection.hget("rq:job:sub1-1", "status") == b"queued"


# ---- cost ------------------------------------------------------------------------------------------


def test_one_trial_costs_four_round_trips_and_a_beat_of_any_number_one(queue, connection, pool, monkeypatch):
    job_id, execution_id = begin_one(queue, connection, pool, 0)  # the server knows the scripts now
    finish(connection, pool, job_id, "w1", execution_id, "finished")
    trips = count_round_trips(connection, monkeypatch)
    job_id, execution_id = begin_one(queue, connection, pool, 1)
    finish(connection, pool, job_id, "w1", execution_id, "finished")
    assert trips.count == 4
    held = [begin_one(queue, connection, pool, number) for number in range(2, 10)]
    trips.count = 0
    renew(connection, pool, "w1", held, 30)
    give_back(connection, pool, *held[0][:1], "w1", held[0][1])
    assert trips.count == 2
