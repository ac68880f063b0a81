"""Admission by gain in a whole pool, over a driver library of our own: what the card says is heard, and shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.fake_nvml import GIB, FakeNvml
from support.waiting import until


@pytest.fixture
def busy_card(make_pool, tmp_path):
    """The driver's stand-in, a card of it that says that it is busy, and a pool on that."""
    fake = FakeNvml(tmp_path / "nvml")
    card = fake.add_card(24 * GIB)
    fake.set_busy(card.index, 100, sm_percent=91)
    return fake, card, make_pool(gpu="all", share=False, budget="75%", max_trials=8, sample_s=0.2, env=fake.env)


@pytest.mark.slow
def test_a_busy_card_takes_no_further_trial_and_says_why(busy_card, tmp_path):
    fake, card, pool = busy_card
    stop = tmp_path / "stop"

    def objective(trial):
        import time

        while not Path(stop).exists():
            time.sleep(0.02)
        return 0.0

    handle = pool.submit(objective, 6, vram="1GiB")
    said = re.compile(r"GPU 0: (\d) running; \d(nd|rd|th) waits: SM 91 % busy")
    found = until(lambda: said.fullmatch(pool.device().reason), what="the reason", timeout_s=60)
    assert 1 <= int(found[1]) <= 4, "no more than it begins with"
    assert len(pool.device().running) == int(found[1])
    assert pool.device().free_bytes == 0, "so no trial is asked for that could not start"
    fake.set_busy(card.index, 100, sm_percent=20)
    until(lambda: len(pool.device().running) == 6, what="six trials", timeout_s=60)
    stop.touch()
    handle.wait(60)
    assert len(handle.finished_roots()) == 6


@pytest.mark.slow
def test_a_trial_that_only_cleans_up_leaves_its_place_to_the_next(busy_card, tmp_path):
    """Its memory is its own until its process is gone; but it computes no more, so the next one begins meanwhile."""
    _, _, pool = busy_card

    def objective(trial):
        import atexit
        import os
        import time

        def clean_up():  # for seconds, if nothing else begins meanwhile
            end_s = time.monotonic() + 3
            while time.monotonic() < end_s and not (tmp_path / f"{trial.number + 1}").exists():
                time.sleep(0.02)
            seen = (tmp_path / f"{trial.number + 1}").exists()
            (tmp_path / f"{trial.number}.saw").write_text(str(seen))

        (tmp_path / f"{trial.number}").write_text(str(os.getpid()))
        atexit.register(clean_up)
        while not (tmp_path / "full").exists():  # the card has told that it is busy
            time.sleep(0.02)
        return 0.0

    handle = pool.submit(objective, 3, vram="1GiB")
    until(lambda: "waits: SM 91 % busy" in pool.device().reason, what="the reason", timeout_s=60)
    begun = len(pool.device().running)
    (tmp_path / "full").touch()
    handle.wait(60)
    assert len(handle.finished_roots()) == 3 and begun < 3
    assert (tmp_path / f"{begun - 1}.saw").read_text() == "True", "the next one began before its process was gone"
