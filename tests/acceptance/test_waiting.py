"""A trial that others would pass over for ever gets its device, and whoever asks is told what each trial waits for."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from optuna.trial import TrialState
from support.commands import call
from support.fake_nvml import GIB, FakeNvml
from support.pools import check_invariants
from support.waiting import until

OBJECTIVES = Path(__file__).with_name("objectives.py")


def test_a_large_trial_drains_its_device_after_the_age_limit_and_why_says_so_of_all(make_pool, tmp_path, capsys):
    """Two trials of 300 MiB run on a budget of 1 GiB; one of 700 MiB waits, and small ones would go past it."""
    pool = make_pool(age_limit_s=0.5)
    at = ("--state-dir", pool.state_dir)
    gate = tmp_path / "gate"
    wait = f"{OBJECTIVES}:wait_for_file"
    gates = pool.submit(wait, 2, study_name="gates", vram="300MiB", env={"GATE": str(gate)})
    until(lambda: gates.progress().running == 2, what="two running trials")
    large = pool.submit(f"{OBJECTIVES}:one", 1, study_name="large", vram="700MiB")
    until(lambda: large.progress().waiting == 1, what="a waiting trial")
    kept = until(lambda: _kept(pool), what="a device that is kept free", timeout_s=20)
    assert (kept.study, kept.number) == ("large", 0)
    small = pool.submit(f"{OBJECTIVES}:one", 1, study_name="small", vram="100MiB")
    until(lambda: pool.device().earmark == kept.job_id, what="the worker's record")
    until(lambda: small.progress().waiting == 1, what="a small trial that waits")

    why = call(capsys, "why", "large", "0", *at)
    assert why.code == 0 and "trial 0 is WAITING" in why.out
    assert "waits for 700 MiB: the CPU is earmarked for it and has 424 MiB free so far" in why.out
    assert "waits for 100 MiB: the CPU is earmarked for large/0" in call(capsys, "why", "small", "0", *at).out
    assert "the CPU is earmarked for large/0, which waits for 700 MiB" in call(capsys, "why", "small", *at).out
    running = call(capsys, "why", "gates", "0", *at)
    assert "trial 0 is RUNNING" in running.out and "its lease is 300 MiB" in running.out
    assert "gets 300 MiB; the CPU has" in running.out, "what the ledger said when it let it in"
    shown = call(capsys, "status", *at)
    assert "large/0 waits for 700 MiB: the CPU is earmarked for it" in " ".join(shown.out.split())
    (waiting,) = [job for job in call(capsys, "status", "--json", *at).json["waiting"] if job["study"] == "large"]
    assert waiting["reason"].startswith("waits for 700 MiB: ") and waiting["earmarked_by"] == pool.device().name

    gate.touch()
    for handle in (gates, large, small):
        handle.wait(60)
        assert {trial.state for trial in handle.trials} == {TrialState.COMPLETE}
    (first,), (second,) = large.trials, small.trials
    assert first.datetime_start < second.datetime_start
    assert pool.device().earmark == "" or until(lambda: pool.device().earmark == "", what="the end of the earmark")
    check_invariants(pool)


@pytest.mark.slow
def test_of_two_cards_one_is_kept_free_and_when_its_worker_dies_the_earmark_moves_on(make_pool, tmp_path, capsys):
    """On stub cards of 24 GiB each; 12 GiB of each are held, so that 16 GiB fit neither."""
    cards = FakeNvml(tmp_path)
    for _ in range(2):
        cards.add_card(24 * GIB, name="NVIDIA Fake 24")
    pool = make_pool(gpu="all", share=False, budget="85%", age_limit_s=0.5, env=cards.env)
    until(lambda: len(pool.devices()) == 2, what="two workers")
    gate = tmp_path / "gate"
    gates = pool.submit(f"{OBJECTIVES}:wait_for_file", 2, study_name="held", vram="12GiB", env={"GATE": str(gate)})
    until(lambda: gates.progress().running == 2, what="a running trial on each card")
    large = pool.submit(f"{OBJECTIVES}:one", 1, study_name="large", vram="16GiB")
    first = until(lambda: _kept(pool), what="a card that is kept free").earmarked_by
    until(lambda: [item for item in pool.devices() if item.earmark], what="its worker's record")

    why = " ".join(call(capsys, "why", "large", "0", "--state-dir", pool.state_dir).out.split())
    kept, other = sorted(pool.devices(), key=lambda item: item.name != first)
    labels = [item.device_name.partition(" (")[0] for item in (kept, other)]
    free = [f"{item.free_bytes / GIB:.1f} GiB free" for item in (kept, other)]
    assert f"waits for 16.0 GiB: {labels[0]} is earmarked for it and has {free[0]} so far" in why
    assert f"{labels[1]} has {free[1]}" in why

    # Another program takes the room before a new worker is up: it would have run the trial on the same card at once.
    os.kill(kept.pid, signal.SIGKILL)
    cards.set_used(kept.device_id, 12 * GIB)
    until(lambda: (job := _kept(pool)) and job.earmarked_by == other.name, what="the other card", timeout_s=30)
    assert (_kept(pool).study, _kept(pool).number) == ("large", 0)
    gate.touch()
    for handle in (gates, large):
        handle.wait(60)
    assert {trial.state for trial in large.trials} == {TrialState.COMPLETE}
    until(lambda: not [item for item in pool.devices() if item.earmark], what="the end of the earmark")
    pool.reserved_bytes = 12 * GIB  # the other program's, on the first card
    check_invariants(pool)


def _kept(pool):
    return next((job for job in pool.pool.queue() if job.earmarked_by), None)
