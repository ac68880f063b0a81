"""Workers that are asked to end, and trials that go on elsewhere from their last checkpoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from optuna.trial import TrialState
from support.parts import Parts, parts, ready_worker
from support.pools import facts_of
from support.waiting import until

import vrampool
from vrampool.messages import EndKind

OBJECTIVES = Path(__file__).with_name("objectives.py")
COMPLETE, FAIL = TrialState.COMPLETE, TrialState.FAIL


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    """Redis and a coordinator; each test starts the workers."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("VRAMPOOL_"):
                patch.delenv(name)
        folder = tmp_path_factory.mktemp("preemption")
        # Long enough for a trial to end in, if a test opens its gate.
        with parts(folder, grace_s=60.0, stop_ask_s=5.0, spares=0, checkpoint_dir=folder / "shared") as made:
            made.coordinator()
            yield made


@pytest.fixture
def pool(running: Parts) -> Iterator[vrampool.Pool]:
    made = running.pool()
    yield made
    for handle in made.handles():
        if not handle.state.final:
            handle.cancel("left by a test")
    made.close()


def submit(pool: vrampool.Pool, objective: str, folder: Path, n_trials: int = 1, **env: str) -> vrampool.Handle:
    return pool.submit(
        f"{OBJECTIVES}:{objective}",
        n_trials,
        vram="90MiB",
        max_infra_retries=0,  # nothing of this may be charged
        env={"NOTES": str(folder / "notes"), "GATE": str(folder / "gate"), **env},
    )


def some_worker(running: Parts, pool: vrampool.Pool) -> subprocess.Popen[bytes]:
    """Return a worker that takes trials: one that a test before has left, or a new one."""
    living = [worker for worker in running.workers if worker.poll() is None]
    found = living[-1] if living else running.worker()
    ready_worker(pool)
    return found


def notes(folder: Path) -> list[str]:
    path = folder / "notes"
    return path.read_text().splitlines() if path.exists() else []


def left(running: Parts, handle: vrampool.Handle) -> list[str]:
    folder = running.folder / "shared" / "vrampool" / handle.id
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) if folder.exists() else []


def test_a_worker_drained_mid_trial_hands_it_back_and_it_goes_on_from_its_checkpoint(
    running: Parts, pool: vrampool.Pool, tmp_path: Path
):
    """SIGTERM lets it finish; the second hurries; the other worker has it at once, without a charge."""
    first = running.worker()
    name = ready_worker(pool).name
    handle = submit(pool, "train", tmp_path)
    until(lambda: "step 2" in notes(tmp_path), what="the third step")

    first.send_signal(signal.SIGTERM)
    until(lambda: [record.state for record in pool.devices()] == ["draining"], what="a draining worker")
    other = submit(pool, "tell_found", tmp_path)
    running.worker()
    ready_worker(pool, but=(name,))
    assert other.wait(30).trials[0].state == COMPLETE, "what waits goes to the other one meanwhile"
    assert facts_of(other.trials[0]).worker != name
    assert first.poll() is None and handle.trials[0].state == TrialState.RUNNING, "it may finish for the grace period"

    first.send_signal(signal.SIGTERM)
    assert first.wait(20) == 0
    (tmp_path / "gate").touch()
    handle.wait(40)
    before, after = handle.study.trials[:2]
    assert (before.state, after.state) == (FAIL, COMPLETE)
    assert facts_of(before).end == EndKind.PREEMPTED and facts_of(before).worker == name
    assert notes(tmp_path) == [
        "attempt 1 begins with step 0",
        *["step 0", "step 1", "step 2"],
        "attempt 2 begins with step 3",
        *["step 3", "step 4", "step 5"],
    ]
    until(lambda: left(running, handle) == [], what="the end of its checkpoints")


def test_a_trial_that_ends_within_the_grace_period_is_not_handed_back(
    running: Parts, pool: vrampool.Pool, tmp_path: Path
):
    worker = some_worker(running, pool)
    handle = submit(pool, "train", tmp_path)
    until(lambda: "step 2" in notes(tmp_path), what="the third step")
    worker.send_signal(signal.SIGTERM)
    until(lambda: [record.state for record in pool.devices()] == ["draining"], what="a draining worker")
    (tmp_path / "gate").touch()
    assert worker.wait(20) == 0
    assert [trial.state for trial in handle.wait(20).trials] == [COMPLETE]


def test_a_trial_is_handed_back_when_the_grace_period_is_over_once_its_checkpoint_is_whole(
    running: Parts, pool: vrampool.Pool, tmp_path: Path
):
    """By `rq worker` too. The request to stop comes in the middle of the writing."""
    rq = Path(sys.executable).with_name("rq")
    worker = running.start(
        rq, "worker", "--worker-class", "vrampool_worker.GpuWorker", "--url", running.redis, "vrampool", grace_s=0.0
    )
    ready_worker(pool)
    handle = submit(pool, "save_slowly", tmp_path)
    until(lambda: notes(tmp_path) == ["saving"], what="a checkpoint in the making")
    worker.terminate()
    until(lambda: "asked to stop" in notes(tmp_path), what="the request to stop")
    (tmp_path / "gate").touch()
    assert worker.wait(20) == 0
    some_worker(running, pool)
    before, after = handle.wait(40).study.trials
    assert (facts_of(before).end, facts_of(after).end) == (EndKind.PREEMPTED, EndKind.COMPLETE)
    assert after.user_attrs["found"] == "whole"


def test_a_trial_killed_in_the_middle_of_a_checkpoint_finds_the_one_before(
    running: Parts, pool: vrampool.Pool, tmp_path: Path
):
    """And what is to be kept is kept, while everything else goes with its root trial."""
    some_worker(running, pool)
    handles = [
        pool.submit(f"{OBJECTIVES}:kill_itself_once", 1, vram="90MiB", env={"NOTES": str(tmp_path / "notes"), **env})
        for env in ({}, {"KEEP": "1"})
    ]
    for handle in handles:
        handle.wait(40)
        assert [trial.state for trial in handle.study.trials] == [FAIL, COMPLETE]
        assert handle.study.trials[1].user_attrs["found"] == "whole"
    until(lambda: left(running, handles[0]) == [], what="the end of the first one's checkpoints")
    assert "0/1/000001/state" in left(running, handles[1])


def test_a_root_that_failed_for_good_leaves_nothing_behind(running: Parts, pool: vrampool.Pool, tmp_path: Path):
    """Whether another attempt comes is not the worker's to know: it clears up when the submission has ended."""
    some_worker(running, pool)
    handle = submit(pool, "kill_itself_once", tmp_path)
    assert [trial.state for trial in handle.wait(40).study.trials] == [FAIL]
    until(lambda: left(running, handle) == [], what="the end of its checkpoints")


def test_plain_functions_have_checkpoints_too(running: Parts, pool: vrampool.Pool, tmp_path: Path):
    """A function of a notebook travels as a bundle; its folder says which root trial and attempt it is."""
    some_worker(running, pool)

    def objective(trial):
        import vrampool

        trial.set_user_attr("folder", str(vrampool.checkpoint(trial).directory))
        return 1.0

    handle = pool.submit(objective, 2, vram="90MiB")
    handle.wait(40)
    folders = [trial.user_attrs["folder"] for trial in handle.trials]
    assert folders == [str(running.folder / "shared" / "vrampool" / handle.id / str(n) / "1") for n in (0, 1)]
