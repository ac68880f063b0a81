"""Trials that are forked from a server with torch imported, on a real card: the server stays as good as new."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from optuna.trial import TrialState
from support.card import (
    await_back,
    await_end,
    await_files,
    card_pool,
    compute_processes,
    has_card_open,
    objective,
    on_card,
    told,
    used_bytes,
)
from support.pools import LivePool, PoolMaker, facts_of
from support.waiting import until

from vrampool.messages import EndKind, Verdict
from vrampool.units import GIB, MIB

pytestmark = on_card


@pytest.fixture(scope="module")
def started(
    own_settings: None, baseline_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LivePool, int]]:
    """A pool whose server is ready, and the server's pid. While it imports trials are spawned, as the first one is."""
    maker = PoolMaker(lambda: tmp_path_factory.mktemp("fork"))
    try:
        pool = card_pool(maker, start_method="forkserver", max_trials=3, budget="60%")

        def server() -> int | None:
            await_end(pool.submit(objective("plain")))
            logs = "".join(path.read_text(errors="replace") for path in (pool.state_dir / "logs").glob("*.log"))
            assert "trials are spawned, not forked" not in logs, logs
            found = re.findall(r"trials are forked from process (\d+)", logs)
            return int(found[-1]) if found else None

        yield pool, until(server, timeout_s=90, what="the server that trials are forked from") or 0
    finally:
        maker.close()


@pytest.fixture
def forking(started: tuple[LivePool, int]) -> Iterator[tuple[LivePool, int]]:
    yield started
    started[0].clear()


def test_six_forked_trials_use_the_card_and_their_server_never_does(
    forking: tuple[LivePool, int], baseline_bytes: int, tmp_path: Path
) -> None:
    pool, server = forking
    env = {"CARD_FOLDER": str(tmp_path), "HOLD": "1024"}
    handle = pool.submit(objective("meet"), 6, vram="3GiB", env=env)
    files = await_files(tmp_path, "here-*", 3, lambda: told(handle))
    trials = [int(path.read_text()) for path in files]
    listed = compute_processes()
    assert all(has_card_open(pid) for pid in trials), f"trials {trials} have the card open; listed are {listed}"
    assert not has_card_open(server), f"the server {server} has the card open"
    assert server not in listed
    assert used_bytes() >= baseline_bytes + 3 * GIB
    (tmp_path / "go").touch()
    await_end(handle)
    print(told(handle))
    assert [(trial.state, trial.value) for trial in handle.trials] == [(TrialState.COMPLETE, 1024.0)] * 6, told(handle)
    # A spare that was spawned while the server imported may still be the first one's.
    assert sum(facts_of(trial).forked for trial in handle.trials) >= 5, told(handle)
    for trial in handle.trials:
        facts = facts_of(trial)
        if facts.forked:
            assert facts.import_s is not None and facts.import_s < 0.5, told(handle)
        assert None not in (facts.spawn_s, facts.handover_s, facts.context_s, facts.run_s, facts.exit_s), told(handle)
        assert facts.handover_s is not None and facts.handover_s < 5, told(handle)
        assert facts.context_s is not None and 0 < facts.context_s < 10, told(handle)
        assert facts.num_ooms == 0 and facts.peak_bytes is not None and GIB < facts.peak_bytes <= 3 * GIB, told(handle)
    await_back(baseline_bytes)
    assert not has_card_open(server) and server not in compute_processes()


def test_the_cap_holds_in_a_forked_trial(forking: tuple[LivePool, int], baseline_bytes: int, tmp_path: Path) -> None:
    """It fails at its own cap, with a card that is nearly empty, and is tried again with more."""
    pool, _ = forking
    handle = await_end(
        pool.submit(objective("ask_too_much"), vram="3GiB", env={"CARD_FOLDER": str(tmp_path), "ASK": "4"})
    )
    first, last = handle.trials[0], handle.trials[-1]
    facts = facts_of(first)
    assert facts.forked, told(handle)
    assert (first.state, facts.end, facts.verdict) == (TrialState.FAIL, EndKind.OOM, Verdict.CULPRIT), told(handle)
    assert facts.asked_bytes == 4 * GIB and facts.lease_bytes == 3 * GIB, told(handle)
    assert facts.cap_bytes is not None and 2 * GIB < facts.cap_bytes < 3 * GIB, told(handle)
    assert facts.max_torch_reserved_bytes is not None, told(handle)
    assert facts.max_torch_reserved_bytes <= facts.cap_bytes + 4 * MIB, told(handle)
    assert facts.device_free_bytes is not None and facts.device_free_bytes > 8 * GIB, "its own cap, not the card"
    assert (last.state, last.value) == (TrialState.COMPLETE, 5.0), told(handle)
    await_back(baseline_bytes)
