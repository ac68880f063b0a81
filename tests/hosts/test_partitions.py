"""One host loses its way to one server, or its cable: the others go on, and within seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import optuna
import pytest
from hosts.conftest import MakeHosts
from hosts.host import COORDINATOR, WORKER
from hosts.lasting import blocked, cut_off, refused, runs_one
from hosts.many import ManyHosts
from hosts.network import DATABASE, HUB
from hosts.time_passes import last
from optuna.trial import TrialState
from recovery.processes import frozen
from support.waiting import until

from vrampool.queueing import Liveness
from vrampool.storage import attempt_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
COMPLETE, FAIL = TrialState.COMPLETE, TrialState.FAIL
Fault = Callable[[ManyHosts, str, str], AbstractContextManager[None]]

#: Reads once, waits for a sign, reads again, and tells how long it took until somebody noticed.
READER = """
import os, sys, time
from pathlib import Path
from vrampool.storage import open_storage, Catalog, TransientStorageError
storage = open_storage(os.environ["VRAMPOOL_STORAGE"], create_schema=False)
catalog = Catalog(storage)
catalog.submissions()
here = Path(sys.argv[1])
if sys.argv[2] == "call":
    (here / "ready").touch()
    while not (here / "cut").exists():
        time.sleep(0.01)
    began_s = time.monotonic()
    try:
        catalog.submissions()
    except TransientStorageError as error:
        (here / "noticed.part").write_text(str(time.monotonic() - began_s))
else:
    with storage.database.transaction() as session:
        from sqlalchemy import text
        session.execute(text("SELECT * FROM studies FOR UPDATE"))
        (here / "ready").touch()
        began_s = time.monotonic()
        try:
            if sys.argv[2] == "hold":
                time.sleep(100)
            session.execute(text("SELECT pg_sleep(100)"))
        except Exception as error:
            (here / "noticed.part").write_text(str(time.monotonic() - began_s))
            os.rename(here / "noticed.part", here / "noticed")
            os._exit(0)
os.rename(here / "noticed.part", here / "noticed")
"""


@pytest.fixture
def pair(make_hosts: MakeHosts) -> ManyHosts:
    """Two hosts with a worker each, and no coordinator yet."""
    made = make_hosts("h1", "h2")
    for host in made.hosts.values():
        host.worker()
    return made


@pytest.mark.parametrize("when", ["call", "answer"])
def test_a_pulled_cable_to_the_database_is_noticed_within_ten_seconds(make_hosts: MakeHosts, tmp_path: Path, when: str):
    """With a call that begins then, and while an answer is awaited."""
    hosts = make_hosts("h1")
    hosts.storage.create_new_study([optuna.study.StudyDirection.MINIMIZE], "s")
    script = hosts["h1"].start_script(READER, str(tmp_path), when)
    until((tmp_path / "ready").exists, what="a connection", timeout_s=60)
    with cut_off(hosts, "h1"):
        (tmp_path / "cut").touch()
        until((tmp_path / "noticed").exists, what="somebody who noticed", timeout_s=30)
        assert float((tmp_path / "noticed").read_text()) < 10
    script.kill()
    script.wait()


def test_rows_that_a_cut_off_host_had_locked_are_free_within_seconds(make_hosts: MakeHosts, tmp_path: Path):
    """By default PostgreSQL would keep them for two hours, and nobody could create a trial of that study."""
    hosts = make_hosts("h1")
    study_id = hosts.storage.create_new_study([optuna.study.StudyDirection.MINIMIZE], "s")
    script = hosts["h1"].start_script(READER, str(tmp_path), "hold")
    until((tmp_path / "ready").exists, what="a locked row", timeout_s=60)
    with cut_off(hosts, "h1"):
        began_s = time.monotonic()
        hosts.storage.create_waiting(study_id, {}, {})
        assert 0.5 < time.monotonic() - began_s < 20
    script.kill()
    script.wait()


def test_the_other_coordinator_leads_within_ten_seconds_when_the_leader_s_cable_is_pulled(pair: ManyHosts):
    """Trials go on; plugged in again, the old leader stands by, and nothing was created or enqueued twice."""
    pair["h1"].coordinator()
    until(lambda: pair.leader_host() is pair["h1"], what="a leader on h1", timeout_s=60)
    pair["h2"].coordinator()
    until(lambda: pair["h2"].says(COORDINATOR) == "standing by", what="one that stands by", timeout_s=60)
    handle = pair.submit("search", 16, env={"STEP_S": "0.2"}, max_infra_retries=100)
    until(lambda: pair.log.started >= 3, what="trials that run", timeout_s=60)
    began_s = time.monotonic()
    with cut_off(pair, "h1"):
        until(lambda: pair.leader_host() is pair["h2"], what="a leader on h2", timeout_s=20)
        assert time.monotonic() - began_s < 10
        number = pair.log.started
        until(lambda: pair.log.started >= number + 2, what="trials that begin under the new leader", timeout_s=60)
    until(lambda: pair["h1"].says(COORDINATOR) == "standing by", what="an old leader that stands by", timeout_s=30)
    trials = pair.await_end(handle)
    done = [trial for trial in trials if trial.state in (COMPLETE, TrialState.PRUNED)]
    assert len(done) == 16 and all(count == 1 for count in pair.log.times("started").values())
    assert pair.leader_host() is pair["h2"]
    assert [pair[name].runs(COORDINATOR) for name in ("h1", "h2")] == [True, True]


@pytest.mark.parametrize("fault", [blocked, refused])
def test_a_leader_that_does_not_reach_the_database_lets_the_other_one_lead(pair: ManyHosts, fault: Fault):
    """It reaches Redis, and could renew its lease for ever."""
    pair["h1"].coordinator()
    until(lambda: pair.leader_host() is pair["h1"], what="a leader on h1", timeout_s=60)
    pair["h2"].coordinator()
    pair.await_end(pair.submit("one", 1))
    until(lambda: pair["h2"].says(COORDINATOR) == "standing by", what="one that stands by", timeout_s=60)
    pair["h1"].stop(WORKER)  # so that only the coordinator is on trial
    with fault(pair, DATABASE, "h1"):
        began_s = time.monotonic()
        until(lambda: pair.leader_host() is pair["h2"], what="a leader on h2", timeout_s=30)
        assert time.monotonic() - began_s < 25
        runs_one(pair)
        assert pair.leader_host() is pair["h2"]
    runs_one(pair)


def test_a_worker_that_does_not_reach_the_database_hands_back_what_it_took(pair: ManyHosts):
    """It reaches Redis, and would take trial after trial that others could run. It says why it takes none."""
    pair["h2"].coordinator()
    for host in pair.hosts.values():
        host.await_ready()
        until(
            lambda host=host: host.says(WORKER) == "ready", what="a worker that has reached the database", timeout_s=60
        )  # type: ignore[misc]
    with blocked(pair, DATABASE, "h1"):
        with frozen(pair["h2"].the_worker()):  # or it could be the quicker one
            handle = pair.submit("one", 4, vram="250MiB", max_infra_retries=0)
            liveness = Liveness(pair.pool.connection, pair.pool.settings.pool)
            until(
                lambda: liveness.alive([f"{handle.id}-0"])[f"{handle.id}-0"], what="a trial taken by h1", timeout_s=60
            )
        trials = pair.await_end(handle, limit_s=60)
        assert [trial.state for trial in trials if pair.host_of(trial) == "h2"] == [COMPLETE] * 4
        until(lambda: pair["h1"].state() == "paused", what="a worker that takes none", timeout_s=20)
        assert "study storage does not answer" in pair["h1"].records()[0].reason
    pair["h1"].await_ready()
    assert all(count == 1 for count in pair.log.times("started").values())
    for trial in trials:
        facts = attempt_of(trial)
        assert trial.state == COMPLETE or (facts is not None and facts.end == "preempted"), "it was charged for it"
    runs_one(pair)


def test_a_hub_that_is_cut_off_from_all_hosts_costs_no_trial_that_ends_after_it(pair: ManyHosts):
    """Everybody is cut off at once, for longer than a lease: nobody is there who could take anybody for dead."""
    pair["h2"].coordinator()
    handle = pair.submit("wait_at_gate", 2, vram="250MiB")
    pair.await_note("waiting", 0)
    pair.await_note("waiting", 1)
    with cut_off(pair, HUB):
        last(6)
    pair.open_gate()
    trials = pair.await_end(handle)
    assert [trial.state for trial in trials] == [COMPLETE] * 2
    assert pair.log.times("started") == pair.log.times("ended") == {0: 1, 1: 1}
