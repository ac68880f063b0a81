"""The simulated pool: every trial runs once, and what is counted is what was done."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from collections.abc import Sequence

import pytest
from benchmarks import simulate
from benchmarks.simulation import pool, standing
from benchmarks.simulation.device import Device
from benchmarks.simulation.listeners import listening
from benchmarks.simulation.picture import cost_by_size
from benchmarks.simulation.pool import Outcome, SimulatedPool, Size
from support.valkey import until

from vrampool.coordinator import Coordinator
from vrampool.queueing import connect
from vrampool.units import GIB


@pytest.fixture
def run(valkey, tmp_path):
    """A function that simulates a pool and returns what was seen; its study must be done then."""

    def run(**options) -> Outcome:
        simulated = SimulatedPool(Size(**options), valkey, tmp_path)
        outcome = simulated.run(60.0)
        assert simulated.finished
        states = Counter(trial.state.name for trial in simulated.trials())
        assert states.pop("COMPLETE") == simulated.size.past + simulated.size.trials, "each once"
        assert states.pop("FAIL", 0) == outcome.ooms
        assert not states
        simulated.close()
        return outcome

    return run


def test_all_trials_of_a_small_pool_run_once_and_its_devices_are_never_idle_for_long(run):
    outcome = run(devices=10, trials=40, lasts_s=2.0)
    assert outcome.ended == 40
    assert outcome.busy > 0.8
    assert outcome.per_s == pytest.approx(5.0, rel=0.4)
    assert outcome.elapsed_s > 40 / 10 * 2 * 0.7, "trials took their time"


def test_round_trips_are_what_the_queue_promises(run):
    outcome = run(devices=4, slots=2, trials=30, lasts_s=1.0)
    begun_and_finished, told = 2 * 30, 2 * 30
    scripts_sent = outcome.trips["worker"] - (len(outcome.asked) + begun_and_finished + told + 4)  # each one's first
    assert 0 <= scripts_sent <= 3, "the server may not have known them yet"
    room = outcome.hints - 2 * 30 - outcome.calls_again  # one when it is enqueued, one when it was told
    assert 30 <= room <= 2 * 30 + 4, "when one ended, and when it was taken where there was room for two"
    assert outcome.bytes["worker"] > 30 * 1000


def test_a_trial_makes_as_many_devices_ask_as_can_run_it_and_not_all_that_have_room(run):
    outcome = run(devices=40, trials=120, lasts_s=8.0)
    assert outcome.fill_questions < 3, "40 while all of them were asked"
    assert outcome.questions < 3


def test_a_worker_that_is_called_and_never_comes_holds_nobody_up_for_long(run, monkeypatch):
    """It has died or hangs, and its record says that it has room."""
    ask = SimulatedPool._ask

    def deaf(self: SimulatedPool, device: Device) -> None:
        if device.name == "gpu-0":
            device.asking = False
        else:
            ask(self, device)

    monkeypatch.setattr(SimulatedPool, "_ask", deaf)
    monkeypatch.setattr(SimulatedPool, "_look", lambda self: None)  # nobody comes by
    outcome = run(devices=6, trials=60, lasts_s=1.0)
    assert 0 < outcome.calls_again < 40
    assert outcome.elapsed_s < 60 / 5 * 1.0 * 1.5


def test_requests_are_learned_from_simulated_peaks(run):
    outcome = run(devices=5, slots=4, trials=60, lasts_s=4.0, requests="learned")
    assert outcome.fits > 5
    assert outcome.fits_cpu_s > 0
    assert outcome.ooms < 20
    together = max(sum(start <= at < end for start, end in outcome.ran) for at, _ in outcome.ran)
    assert together > 5, "they run alone only until something is known"


def test_a_retry_is_called_out_to_one_worker_too(run, monkeypatch):
    called: list[Sequence[str] | None] = []
    call, calls = SimulatedPool._call, itertools.count(1)

    def noting(self: SimulatedPool, workers: Sequence[str] | None) -> None:
        called.append(workers)
        call(self, workers)

    monkeypatch.setattr(SimulatedPool, "_call", noting)
    monkeypatch.setattr(SimulatedPool, "_look", lambda self: None)  # nobody comes by
    monkeypatch.setattr(pool, "peak_of", lambda _params, _rng: (30 if next(calls) % 12 == 0 else 8) * GIB)
    outcome = run(devices=8, slots=4, trials=80, lasts_s=4.0, requests="learned")
    assert outcome.ooms > 0
    assert None not in called, "that would be everybody"
    assert sum(len(workers) for workers in called) < 1.5 * (80 + outcome.ooms)


def test_requests_are_learned_from_a_past_that_differs(run):
    outcome = run(devices=3, slots=4, trials=12, past=100, lasts_s=4.0, requests="learned")
    together = max(sum(start <= at < end for start, end in outcome.ran) for at, _ in outcome.ran)
    assert together > 3, "none has to run alone, as something is known"


def test_every_worker_listens_on_a_connection_of_its_own(valkey):
    client = connect(valkey, role="test")
    with listening(valkey, [("all", f"own-{number}") for number in range(150)]):
        assert client.pubsub_numsub("all", "own-7") == [(b"all", 150), (b"own-7", 1)]
        assert client.publish("own-7", "x" * 100_000) == 1
    until(lambda: client.pubsub_numsub("all") == [(b"all", 0)], what="the end of all of them")
    client.close()


def test_what_the_server_worked_is_what_it_says_itself(run):
    outcome = run(devices=20, trials=60, lasts_s=2.0)
    assert outcome.server_s == pytest.approx(outcome.server_cpu_s, rel=0.3, abs=0.03)


def test_a_study_with_a_past_goes_on_where_it_was(run):
    outcome = run(devices=5, trials=20, past=50, lasts_s=1.0, sampler="tpe")
    assert {turn.trials for turn in outcome.turns} <= set(range(50, 71))
    assert sum(turn.created for turn in outcome.turns) == 20
    assert all(50 <= trials <= 70 and cost_ms > 0 for trials, cost_ms in cost_by_size(outcome))


def test_devices_wait_for_a_coordinator_that_cannot_keep_up(run, monkeypatch):
    """Simulated time goes on by its CPU time: a turn serves all four devices, and takes longer than their trials."""
    turn = Coordinator.turn

    def slow(self: Coordinator) -> bool:
        end_s = time.thread_time() + 0.3
        while time.thread_time() < end_s:
            pass
        return turn(self)

    monkeypatch.setattr(Coordinator, "turn", slow)
    late = run(devices=4, trials=12, lasts_s=0.2)
    assert late.cpu_per_trial_s > 0.05
    assert late.per_s < 0.6 * late.size.wanted_per_s
    assert late.busy < 0.7
    assert all(turn.took_s >= turn.cpu_s > 0.1 for turn in late.turns)


def test_turns_follow_each_other_in_time(run):
    outcome = run(devices=3, trials=6, lasts_s=2.5)
    for before, after in itertools.pairwise(outcome.turns):
        assert before.at_s + before.took_s <= after.at_s + 1e-9
    assert any(not turn.woken for turn in outcome.turns), "it looks every second although nobody calls"
    assert 0 < outcome.idle_look_s < outcome.cpu_per_trial_s


def test_what_a_device_costs_beside_its_trials_is_measured(valkey):
    found = standing.measure(valkey)
    assert found.trips == pytest.approx((4 + 0.5 + 0.2) / 2 + 2, abs=0.1), "a beat every 2 s, a sample every 0.5 s"
    assert found.bytes > 1000
    assert 0 < found.server_s < 0.1


def test_the_command_prints_a_table_and_writes_what_was_seen(tmp_path, capsys):
    out = tmp_path / "seen.json"
    assert simulate.main(["--devices", "3", "--trials", "6", "--lasts", "2", "--json", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "3 x 1" in shown
    assert "round trips" in shown
    assert '"ended": 6' in out.read_text()


def test_curves_are_drawn_from_what_was_written_by_several_runs(tmp_path):
    size = {"devices": 3, "slots": 1, "lasts_s": 1.0, "sampler": "random", "past": 0}
    seen = {
        "size": size,
        "cost_by_size": [[10, 20.0], [20, 21.0]],
        "cpu_per_trial_s": 0.02,
        "server_s": 0.1,
        "ended": 30,
        "ran_per_s": 2.5,
        "busy": 0.9,
    }
    files = []
    for title in ("study size", "devices", "devices before", "load", "load of 1 000", "whole study"):
        files.append(tmp_path / f"{title}.json")
        files[-1].write_text(json.dumps({title: [seen]}))
    assert simulate.main(["--draw", *map(str, files), "--png", str(tmp_path / "curves.png")]) == 0
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
