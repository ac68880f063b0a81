"""Out of memory on a GPU, told apart: A01 to A03, victims, errors that an objective swallows, and what is said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from optuna.trial import TrialState
from support import commands
from support.fake_nvml import GIB, FakeNvml
from support.pools import PROBE, LivePool, PoolMaker, check_invariants, facts_of, only
from support.waiting import until

import vrampool
from vrampool.errors import RequestError
from vrampool.messages import EndKind, Verdict
from vrampool.units import MIB

OBJECTIVES = Path(__file__).parents[1] / "support" / "oom_objectives.py"
FAKE_TORCH = Path(__file__).parents[1] / "support" / "fake_torch"
COMPLETE, FAIL, PRUNED = TrialState.COMPLETE, TrialState.FAIL, TrialState.PRUNED
#: 85 % of the larger card.
LARGEST = int(0.85 * 8 * GIB)


@pytest.fixture(scope="module")
def cards(tmp_path_factory: pytest.TempPathFactory) -> FakeNvml:
    """Two cards of 8 GiB."""
    fake = FakeNvml(tmp_path_factory.mktemp("nvml"))
    fake.add_card(8 * GIB)
    fake.add_card(8 * GIB)
    return fake


@pytest.fixture(scope="module")
def started(own_settings: None, cards: FakeNvml, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivePool]:
    maker = PoolMaker(lambda: tmp_path_factory.mktemp("oom"))
    env = {**cards.env, "PYTHONPATH": f"{FAKE_TORCH}:{PROBE}"}
    made = maker(gpu="all", share=False, budget="85%", max_trials=4, sample_s=0.1, env=env)
    made.reserved_bytes = cards.cards[0].reserved_bytes
    until(lambda: len(made.devices()) == 2, what="two workers", timeout_s=60)
    yield made
    maker.close()


@pytest.fixture
def gpus(started: LivePool) -> Iterator[LivePool]:
    yield started
    started.clear()


def requests(handle: vrampool.Handle) -> list[int | None]:
    return [facts_of(trial).request_bytes for trial in handle.trials]


def verdicts(handle: vrampool.Handle) -> list[str | None]:
    return [facts_of(trial).verdict for trial in handle.trials]


# ---- A01: the many spellings -------------------------------------------------------------------------


def test_a01_every_spelling_of_an_out_of_memory_error_is_tried_again_with_more(gpus: LivePool):
    """All four at once: each is told as what it was, names the lease it ran with, and ends COMPLETE with more."""
    handles = [gpus.submit(f"{OBJECTIVES}:fail_below_1000_mib", vram="500MiB", env={"FORM": str(n)}) for n in range(4)]
    for handle in handles:
        *before, last = handle.wait(60).trials
        assert (last.state, last.value) == (COMPLETE, 1.0)
        assert before
        for trial in before:
            facts = facts_of(trial)
            assert (trial.state, facts.end) == (FAIL, EndKind.OOM)
            assert facts.verdict in (Verdict.CULPRIT, Verdict.UNKNOWN)
            assert f"a lease of {facts.request_bytes // MIB} MiB" in facts.text
        asked = [request for request in requests(handle) if request is not None]
        assert asked[0] == 500 * MIB and asked == sorted(set(asked)), "each attempt with more"
        assert handle.progress().counts == {"COMPLETE": 1}, "the number of trials asked for is unchanged"


# ---- A02: host memory --------------------------------------------------------------------------------


def test_a02_host_memory_that_ran_out_raises_no_request_and_a_users_text_means_nothing(gpus: LivePool):
    handles = {
        form: gpus.submit(f"{OBJECTIVES}:fail_for_host_memory", vram="500MiB", env={"FORM": form}) for form in "abc"
    }
    for form, handle in handles.items():
        trials = handle.wait(60).trials
        assert set(requests(handle)) == {500 * MIB}
        assert [trial.state for trial in trials] == [FAIL] * len(trials)
        if form == "c":
            facts = facts_of(only(handle))
            assert (facts.end, facts.verdict) == (EndKind.FAILED, None)
        else:
            assert len(trials) == 2, "one retry, as it was"
            assert verdicts(handle) == [Verdict.HOST] * 2
            assert all("host memory ran out" in facts_of(trial).text for trial in trials)


# ---- A03: too large for any card ---------------------------------------------------------------------


def test_a03_a_request_beyond_every_card_is_refused_at_once(gpus: LivePool):
    with pytest.raises(RequestError, match=r"9.0 GiB.*6.[38] GiB"):
        gpus.submit(f"{OBJECTIVES}:one", vram="9GiB")
    assert only(gpus.run(f"{OBJECTIVES}:one", vram="1GiB")).state == COMPLETE, "and blocks nobody"


def test_a03_escalation_reaches_the_full_card_and_ends_there(gpus: LivePool):
    handle = gpus.run(f"{OBJECTIVES}:always_out_of_memory", vram="3000MiB")
    *before, last = handle.trials
    *asked, whole = requests(handle)
    assert asked[0] == 3000 * MIB and asked == sorted(set(asked))
    assert whole is None and facts_of(last).lease_bytes == LARGEST - GIB // 2, "one attempt at the full card"
    assert {trial.state for trial in before} == {FAIL}
    facts = facts_of(last)
    assert (last.state, last.value, facts.end) == (PRUNED, None, EndKind.INFEASIBLE)
    assert "out of memory with all that trials may have of a device" in facts.text
    assert last.constraints["vrampool:over_gib"] > 0
    assert handle.progress().counts == {"PRUNED": 1}


# ---- culprits and victims ----------------------------------------------------------------------------


def test_a_culprit_asks_for_what_it_lacked_and_a_fifth_and_says_so_in_one_paragraph(gpus: LivePool, capsys):
    handle = gpus.run(f"{OBJECTIVES}:take_too_much", vram="2GiB")
    first, second = handle.trials
    facts = facts_of(first)
    assert (facts.end, facts.verdict, facts.asked_bytes) == (EndKind.OOM, Verdict.CULPRIT, 3 * GIB)
    assert second.state == COMPLETE
    assert facts_of(second).request_bytes == pytest.approx(1.2 * 3.7 * GIB, rel=0.05)
    cap = f"{facts.cap_bytes / GIB:.1f} GiB"
    for words in ("It asked for 2.0 GiB", "a lease of 2.0 GiB on GPU", f"Its cap was {cap} for torch's allocator",
                  "then asked for 3.0 GiB more", "of the device were free", "Verdict: culprit"):  # fmt: skip
        assert words in facts.story
    assert "\n" not in facts.story
    done = commands.call(capsys, "why", handle.study_name, str(first.number), "--state-dir", gpus.state_dir)
    assert facts.story in done.out, done
    assert f"tried again as trial {second.number}: out of memory with 2.0 GiB" in done.out


def test_a_victim_is_tried_again_elsewhere_at_no_charge(gpus: LivePool, cards: FakeNvml, tmp_path):
    """A stranger takes the rest of the card while the trial keeps to its lease."""
    handle = gpus.submit(f"{OBJECTIVES}:fall_victim", vram="4GiB", env={"MEETING": str(tmp_path)}, max_infra_retries=0)
    until((tmp_path / "holds-0").exists, what="a trial that holds 1 GiB")
    (running,) = [device for device in gpus.devices() if device.running]
    cards.set_used(running.device_id, 5 * GIB + 512 * MIB)
    (tmp_path / "full").touch()
    first, second = handle.wait(60).trials
    cards.set_used(running.device_id, 0)
    facts = facts_of(first)
    assert (facts.end, facts.verdict) == (EndKind.OOM, Verdict.VICTIM), facts.text
    assert "the device was full" in facts.text and "other programs" in facts.story
    assert second.state == COMPLETE
    assert facts_of(second).device != facts.device, "not at once on the same card"
    assert facts_of(second).request_bytes == facts.request_bytes == 4 * GIB
    assert handle.progress().counts == {"COMPLETE": 1}


# ---- swallowed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["value", "prune", "fail"])
def test_an_error_that_the_objective_swallows_does_not_change_the_search_in_silence(gpus: LivePool, end):
    """It would have returned another configuration's value; with more memory it returns its own."""
    handle = gpus.run(f"{OBJECTIVES}:swallow", vram="3GiB", env={"END": end})
    first, second = handle.trials
    facts = facts_of(first)
    assert (first.state, first.value, facts.end, facts.verdict) == (FAIL, None, EndKind.OOM, Verdict.SWALLOWED)
    assert facts.num_ooms == 1 and facts.num_ooms_handled == 0
    assert facts.asked_bytes == 3 * GIB
    assert "the objective caught an out-of-memory error" in facts.text and "oom='user'" in facts.text
    assert (second.state, second.value) == (COMPLETE, 3.0)
    assert facts_of(second).request_bytes == pytest.approx(4.5 * GIB, rel=0.01), "1.5 x its lease"
    assert handle.progress().counts == {"COMPLETE": 1}


def test_a_workspace_that_a_library_did_without_is_no_error_of_the_trial(gpus: LivePool):
    """Such a trial was taken for one that swallowed errors: its result, all of its time, was thrown away."""
    trial = only(gpus.run(f"{OBJECTIVES}:library_does_with_less", vram="4GiB"))
    facts = facts_of(trial)
    assert trial.user_attrs["had"] == [False, False, True]
    assert (trial.state, trial.value, facts.end, facts.verdict) == (COMPLETE, 1.5, EndKind.COMPLETE, None), facts.text
    assert facts.num_ooms == 2
    assert "2 allocations failed, 2 of them in a library that then did with less" in facts.story


def test_what_is_the_objectives_own_affair_is_left_to_it(gpus: LivePool, capsys):
    """By oom="user", here from the command line; and by the helper that looks for a batch size."""
    own = gpus.run(f"{OBJECTIVES}:swallow", vram="3GiB", oom="user")
    assert (only(own).value, facts_of(only(own)).num_ooms) == (2.0, 1)
    helped = only(gpus.run(f"{OBJECTIVES}:find_a_batch_size", vram="4GiB"))
    assert (helped.state, helped.value) == (COMPLETE, 2.0), facts_of(helped).text
    assert (facts_of(helped).num_ooms, facts_of(helped).num_ooms_handled) == (1, 1)
    done = commands.call(
        *(capsys, "run", f"{OBJECTIVES}:swallow", "--trials", "1", "--study", "own-affair", "--vram", "3GiB"),
        *("--oom", "user", "--state-dir", gpus.state_dir),
    )
    assert done.code == 0, done
    assert only(gpus.pool.attach("own-affair")).value == 2.0


def test_at_the_full_card_a_swallowed_error_counts_as_what_the_objective_made_of_it(gpus: LivePool):
    """No device has more, so there is no other result to be had."""
    trial = only(gpus.run(f"{OBJECTIVES}:swallow_at_the_full_card", vram="auto"))
    assert (trial.state, trial.value) == (COMPLETE, 0.5)
    assert facts_of(trial).num_ooms == 1
    check_invariants(gpus)
