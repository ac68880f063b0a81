"""RQ's own `SpawnWorker`: a job for each trial, which asks, runs and tells; one worker for each trial at once."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from benchmarks.peers.driving import Asked, create_study, finish, journal, load_study, states, wait_until
from benchmarks.peers.work import objective

_ENDS = ("finished", "failed", "stopped", "canceled")


def one_trial() -> None:
    """The job. It opens the study, for it is in a process of its own."""
    import optuna

    study = load_study(Asked.read().folder)
    trial = study.ask()
    try:
        value = objective(trial)
    except Exception:
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
        raise
    study.tell(trial, value)


def main() -> None:
    """Start a server and the workers, enqueue all trials, wait for the jobs."""
    import redis
    import rq

    asked = Asked.read()
    socket = asked.folder / "redis.sock"
    server = subprocess.Popen(
        [asked.server, "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(asked.folder)],
        stdout=subprocess.DEVNULL,
    )
    connection = redis.Redis.from_url(f"unix://{socket}")
    wait_until(lambda: socket.exists() and _answers(connection))
    command = [sys.executable, "-m", "rq.cli", "worker", "-w", "rq.worker.SpawnWorker", "-u", f"unix://{socket}"]
    workers = [
        subprocess.Popen([*command, "trials"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(asked.at_once)
    ]
    study = create_study(journal(asked.folder))
    queue = rq.Queue("trials", connection=connection)
    limit: Any = {} if asked.limit_s is None else {"job_timeout": int(asked.limit_s)}
    jobs = [queue.enqueue(one_trial, **limit) for _ in range(asked.trials)]
    wait_until(lambda: all(job.get_status(refresh=True).value in _ENDS for job in jobs), 300.0)
    finish(asked, states(study), jobs=[job.get_status().value for job in jobs])
    for process in [*workers, server]:
        process.terminate()
        process.wait()


def _answers(connection: Any) -> bool:
    import redis

    try:
        return bool(connection.ping())
    except redis.ConnectionError:
        return False


if __name__ == "__main__":
    # By its name: what is enqueued as `__main__.one_trial` no worker would find.
    from benchmarks.peers.ways import rq_workers

    rq_workers.main()
