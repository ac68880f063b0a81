"""A33: PostgreSQL has few connections to give. One for each worker is enough, and none is waited for in vain."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from hosts.conftest import MakeHosts
from hosts.many import ManyHosts
from optuna.trial import TrialState
from support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


class Watch:
    """Counts the connections to a pool's database for as long as the block lasts."""

    def __init__(self, pool: ManyHosts) -> None:
        self._pool = pool
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.most = 0

    def _look(self) -> None:
        query = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{self._pool.database}'"
        with self._pool.postgres.connect("postgres", autocommit=True) as connection:
            while not self._stop.wait(0.05):
                self.most = max(self.most, connection.execute(query).fetchone()[0])

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()


def test_twelve_workers_run_two_hundred_trials_over_twenty_connections(make_pool: MakeHosts):
    """Three of the twenty are kept for an administrator. One worker, one connection; one more for the coordinator."""
    names = [f"h{number}" for number in range(12)]
    pool = make_pool(*names, max_connections=20, budget="100MiB", max_trials=1, spares=1)
    pool.storage.close()
    with Watch(pool) as watch:
        pool["h0"].coordinator()
        for name in names:
            pool[name].worker()
        until(lambda: len(pool.pool.devices()) == 12, what="twelve workers", timeout_s=120)
        handle = pool.submit("one", 200, vram="90MiB")
        trials = pool.await_end(handle, limit_s=240)
    assert Counter(trial.state for trial in trials) == {TrialState.COMPLETE: 200}
    ours = 2  # of this process: the notebook's, and one that looks
    assert watch.most <= 12 + 1 + ours
    assert pool.log.times("ended") == dict.fromkeys(range(200), 1)


def test_a_worker_that_gets_no_connection_waits_for_one_and_says_why(make_pool: MakeHosts):
    """No trial fails for it, and it takes none that others could run."""
    pool = make_pool("h0", "h1", max_connections=30, budget="100MiB", max_trials=1)
    role = "CREATE ROLE few LOGIN CONNECTION LIMIT 1; GRANT ALL ON ALL TABLES IN SCHEMA public TO few"
    for statement in role.split(";"):
        pool.postgres.execute(pool.database, statement)
    pool.postgres.execute(pool.database, "GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO few")
    url = pool.storage_url.replace("postgres@", "few@")
    pool["h0"].coordinator()
    pool["h0"].worker(storage=url)
    pool["h0"].await_ready()
    pool["h1"].worker(storage=url)
    until(lambda: "too many connections" in pool["h1"].log("worker"), what="a word of it", timeout_s=30)
    assert "raise max_connections, or run fewer workers" in pool["h1"].log("worker")
    trials = pool.await_end(pool.submit("one", 6))
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 6
    pool["h0"].stop("worker")
    pool["h1"].await_ready()
    trials = pool.await_end(pool.submit("one", 1))
    assert [trial.state for trial in trials] == [TrialState.COMPLETE]
