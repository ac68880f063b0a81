"""How an objective gets to the workers: typed into a script or a notebook, by import path, or not at all."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import numpy
import pytest
from optuna.trial import TrialState
from support.pools import LivePool, check_invariants, facts_of, log_of, only
from support.waiting import until

from vrampool.errors import ObjectiveError

OBJECTIVES = Path(__file__).with_name("objectives.py")

CELL = """
import os
import vrampool

SCALE = 3
def helper(x):
    return SCALE * x
def objective(trial):
    trial.set_user_attr("cwd", os.getcwd())
    return helper(trial.suggest_float("x", 1, 1))
"""


def run_script(pool: LivePool, folder: Path, source: str, how: str = "file", **env: str) -> str:
    """Run a program that finds the pool by `VRAMPOOL_STATE_DIR`; return what it printed."""
    command = [sys.executable, "-"]
    if how == "file":
        (folder / "cell.py").write_text(source)
        command = [sys.executable, "cell.py"]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "VRAMPOOL_STATE_DIR": str(pool.state_dir), **env},
        input="" if how == "file" else source,
        capture_output=True,
        text=True,
        timeout=40,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("how", ["file", "typed"])
def test_an_objective_of_a_script_or_notebook_runs_where_nobody_has_its_source(pool: LivePool, tmp_path, how):
    """A11: what it refers to comes with it; the trial runs in another folder."""
    source = CELL + 'vrampool.Pool().submit(objective, 1, study_name="cell-" + os.environ["HOW"]).wait()'
    run_script(pool, tmp_path, source, how, HOW=how)
    trial = only(pool.pool.attach(f"cell-{how}"))
    assert (trial.state, trial.value) == (TrialState.COMPLETE, 3.0)
    assert trial.user_attrs["cwd"] != str(tmp_path)
    check_invariants(pool)


def test_a_cell_that_is_run_again_is_used_from_then_on_and_not_by_trials_that_wait(pool: LivePool, tmp_path):
    """A11: what was submitted stays as it was."""
    source = (
        CELL
        + """
def waiting(trial):
    import time
    while not os.path.exists(os.environ["GATE"]):
        time.sleep(0.01)
    return objective(trial)
pool = vrampool.Pool()
gate = os.environ["GATE"]
first = pool.submit(waiting, 3, vram="200MiB", max_concurrent_trials=1, study_name="before", env={"GATE": gate})
def helper(x):
    return 100.0 * x
second = pool.submit(objective, 1, vram="200MiB", study_name="after").wait()
open(gate, "w").close()
first.wait()
"""
    )
    run_script(pool, tmp_path, source, GATE=str(tmp_path / "gate"))
    assert [trial.value for trial in pool.pool.attach("before").trials] == [3.0] * 3
    assert [trial.value for trial in pool.pool.attach("after").trials] == [100.0]
    check_invariants(pool)


def test_a_script_with_workers_of_its_own_in_its_trials(pool: LivePool, tmp_path):
    """A16 from `__main__`: processes started by spawn look there for the function they are sent."""
    source = """
import multiprocessing
import vrampool
def square(x):
    return x * x
def objective(trial):
    total = 0
    for method in ("spawn", "fork"):
        with multiprocessing.get_context(method).Pool(2) as workers:
            total += sum(workers.map(square, [1, 2, 3]))
    return float(total)
if __name__ == "__main__":
    vrampool.Pool().submit(objective, 1, study_name="main-starts-processes").wait()
"""
    run_script(pool, tmp_path, source)
    assert only(pool.pool.attach("main-starts-processes")).value == 28.0
    check_invariants(pool)


def state_of(pool: LivePool) -> tuple[int, set[bytes]]:
    """Return how many studies there are, and the keys of Redis that stay."""
    passing = (b":worker:", b":workers", b"rq:worker", b":leader", b":samples:", b":answer:", b":once:", b":live:")
    keys = {key for key in pool.pool.connection.keys("*") if not any(word in key for word in passing)}
    return len(pool.pool.storage.get_all_studies()), keys


def test_a_large_data_set_in_a_closure_is_refused_before_anything_is_there(pool: LivePool):
    """A12: with its size, the limit, and the name of what is so large."""
    pool.idle()
    before = state_of(pool)
    X = numpy.zeros(2_000_000)

    def objective(trial):
        return float(X.sum()) + trial.suggest_float("x", 0, 1)

    with pytest.raises(ObjectiveError, match=r"15\.3 MiB bundled, over the limit of 8\.0 MiB.*'X'"):
        pool.submit(objective, 20)
    assert state_of(pool) == before
    check_invariants(pool)


def test_a_captured_array_is_stored_once_for_all_trials(pool: LivePool):
    """A12: twenty trials of 2 MB each leave nothing of that in Redis and one copy in the database."""
    data = numpy.random.default_rng(0).random(250_000)

    def objective(trial):
        return float(data[0]) + trial.suggest_float("x", 0, 1)

    used = []
    pool.idle()
    handle = pool.submit(objective, 20)
    handle.wait(60, on_progress=lambda _: used.append(pool.pool.connection.info("memory")["used_memory"]))
    assert [trial.state for trial in handle.trials] == [TrialState.COMPLETE] * 20
    assert max(used) - used[0] < data.nbytes
    digest = handle.spec.objective.bundle_sha256
    with sqlite3.connect(pool.state_dir / "study.db", timeout=30) as database:
        kept = "select count(*) from vrampool_bundles where sha256 = ?"
        assert database.execute(kept, [digest]).fetchone() == (1,)
        database.execute("update vrampool_bundles set created_at = created_at - 3600 where sha256 = ?", [digest])
        database.commit()
        check_invariants(pool)  # another bundle's submission ends
        until(lambda: database.execute(kept, [digest]).fetchone() == (0,), what="an end of the bundle after an hour")
    database.close()


def test_an_objective_that_cannot_be_pickled_names_what_it_holds(pool: LivePool):
    """A13: in the caller, before any trial or key exists."""
    pool.idle()
    before = state_of(pool)
    lock = threading.Lock()

    def objective(trial):
        with lock:
            return 1.0

    with pytest.raises(ObjectiveError, match=r"'lock'.*cannot pickle '_thread\.lock' object"):
        pool.submit(objective, 5, study_name="never-made")
    assert state_of(pool) == before
    check_invariants(pool)


def test_a_module_that_the_worker_lacks_fails_the_trial_with_its_name_and_host(pool: LivePool, tmp_path):
    """A14: told once and not tried again; what comes next runs."""
    helper = tmp_path / "helper_here.py"
    helper.write_text("def add(x):\n    return x + 1\n")
    source = """
import os, vrampool
from helper_here import add
os.unlink("helper_here.py")  # as on a host that never had it
def objective(trial):
    return add(1)
vrampool.Pool().submit(objective, 3, study_name="lacks-a-module").wait()
"""
    run_script(pool, tmp_path, source)
    handle = pool.pool.attach("lacks-a-module")
    assert [trial.state for trial in handle.trials] == [TrialState.FAIL] * 3
    for trial in handle.trials:
        facts = facts_of(trial)
        assert "ModuleNotFoundError" in facts.text
        assert "helper_here" in facts.text
        assert facts.host in facts.text
    check_invariants(pool)


def test_an_objective_by_path_can_import_what_lies_beside_it_and_sees_the_newest_source(pool: LivePool, tmp_path):
    """Each trial imports anew; but a file that was changed after it was submitted is not run under the old name."""
    (tmp_path / "beside.py").write_text("VALUE = 1.0\n")
    target = tmp_path / "mine.py"
    target.write_text("from beside import VALUE\ndef objective(trial):\n    return VALUE\n")
    assert only(pool.run(f"{target}:objective")).value == 1.0
    target.write_text("def objective(trial):\n    return 2.0\n")
    assert only(pool.run(f"{target}:objective")).value == 2.0
    gate = tmp_path / "gate"
    target.write_text("def objective(trial):\n    return 3.0\n")
    blocker = pool.submit(f"{OBJECTIVES}:wait_for_file", 1, vram="1GiB", env={"GATE": str(gate)})
    until(lambda: blocker.progress().running, what="a trial that fills the device")
    handle = pool.submit(f"{target}:objective", 1)
    target.write_text("def objective(trial):\n    return 4.0\n")
    gate.touch()
    until(lambda: handle.without_worker() is not None or handle.progress().final, what="a word about the change")
    assert re.search(
        "other source code|not the file that was submitted", handle.without_worker() or facts_of(only(handle)).text
    )
    handle.cancel()
    handle.wait(30)
    blocker.wait(30)
    check_invariants(pool)


def test_the_log_of_a_bundled_objective_shows_its_own_lines(pool: LivePool):
    """A15 for a notebook: the traceback has the objective's frame and none of ours."""

    def objective(trial):
        raise RuntimeError("here")

    trial = only(pool.run(objective))
    assert "in objective" in facts_of(trial).traceback
    assert "vrampool_worker" not in facts_of(trial).traceback
    assert b"RuntimeError: here" in log_of(trial)
    check_invariants(pool)
