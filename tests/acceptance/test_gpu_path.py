"""The way to a GPU without one: real workers over a driver library of our own, with two cards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from optuna.trial import TrialState
from support import commands
from support.fake_nvml import GIB, FakeNvml
from support.pools import LivePool, PoolMaker, check_invariants, facts_of, only, processes_of
from support.waiting import until

OBJECTIVES = Path(__file__).with_name("objectives.py")


@pytest.fixture(scope="module")
def cards(tmp_path_factory: pytest.TempPathFactory) -> FakeNvml:
    """Two unlike cards; the smaller one comes first."""
    fake = FakeNvml(tmp_path_factory.mktemp("nvml"))
    fake.add_card(8 * GIB, name="NVIDIA Fake 8")
    fake.add_card(24 * GIB, name="NVIDIA Fake 24")
    return fake


@pytest.fixture(scope="module")
def started(own_settings: None, cards: FakeNvml, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivePool]:
    maker = PoolMaker(lambda: tmp_path_factory.mktemp("gpus"))
    made = maker(gpu="all", share=False, budget="85%", max_trials=2, env=cards.env)
    made.reserved_bytes = cards.cards[0].reserved_bytes
    until(lambda: len(made.devices()) == 2, what="two workers")
    yield made
    maker.close()


@pytest.fixture
def gpus(started: LivePool) -> Iterator[LivePool]:
    yield started
    started.clear()


def test_each_card_has_a_worker_of_its_own(gpus: LivePool, cards: FakeNvml):
    """With its size, its budget and its name."""
    small, large = cards.cards
    found = {device.device_id: device for device in gpus.devices()}
    assert set(found) == {small.uuid, large.uuid}
    assert len({device.pid for device in found.values()}) == 2
    for card in (small, large):
        device = found[card.uuid]
        assert device.total_bytes == card.total_bytes
        assert device.budget_bytes == pytest.approx(0.85 * card.total_bytes, rel=0.01)
        assert card.name in device.device_name
        assert device.device_kind == "cuda"


def test_a_child_sees_exactly_its_workers_card_when_the_objective_is_imported(
    gpus: LivePool, cards: FakeNvml, tmp_path
):
    """A07: by UUID, in PCI order, with the allocator's settings; not set after the import, but before."""
    env = {"MEETING": str(tmp_path), "MEETING_SIZE": "2"}
    handle = gpus.run(f"{OBJECTIVES}:meet_on_cards", 6, vram="4GiB", env=env)
    assert {trial.state for trial in handle.trials} == {TrialState.COMPLETE}
    used = set()
    for trial in handle.trials:
        facts, told = facts_of(trial), trial.user_attrs
        assert told["at_import"] == told["now"]
        assert told["at_import"]["CUDA_VISIBLE_DEVICES"] == facts.device
        assert told["at_import"]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
            assert "expandable_segments:True" in told["at_import"][name]
        used.add(facts.device)
    assert used == {card.uuid for card in cards.cards}, "both cards were used"
    check_invariants(gpus)


def test_a_bundled_objective_is_opened_with_the_card_set(gpus: LivePool):
    """A07 for a notebook: what is unpickled may look at the card, too."""

    class Look:
        def __init__(self):
            self.seen = None

        def __setstate__(self, state):
            import os

            self.seen = os.environ.get("CUDA_VISIBLE_DEVICES")

        def __getstate__(self):
            return {"made": "here"}

    look = Look()

    def objective(trial):
        trial.set_user_attr("seen", look.seen)
        return 0.0

    trial = only(gpus.run(objective, vram="1GiB"))
    assert trial.user_attrs["seen"] == facts_of(trial).device
    check_invariants(gpus)


def test_a_trial_that_fits_the_large_card_alone_goes_there(gpus: LivePool, cards: FakeNvml):
    _, large = cards.cards
    handle = gpus.run(f"{OBJECTIVES}:tell_import_environment", 3, vram="12GiB")
    assert {facts_of(trial).device for trial in handle.trials} == {large.uuid}
    check_invariants(gpus)


def test_the_submission_cannot_move_its_trials_to_another_card(gpus: LivePool, cards: FakeNvml):
    """`env=` may set much, but not that."""
    trial = only(
        gpus.run(f"{OBJECTIVES}:tell_import_environment", vram="1GiB", env={"CUDA_VISIBLE_DEVICES": "0,1", "OWN": "1"})
    )
    assert trial.user_attrs["at_import"]["CUDA_VISIBLE_DEVICES"] == facts_of(trial).device
    check_invariants(gpus)


def test_the_parents_own_environment_stays_as_it_was(gpus: LivePool):
    """A07: neither worker nor coordinator hides cards from itself."""
    for pid in gpus.pids().values():
        environment = gpus.probe(pid)["environment"]
        assert "CUDA_VISIBLE_DEVICES" not in environment
        assert "CUDA_DEVICE_ORDER" not in environment


def test_a_run_whose_card_is_lost_ends_with_code_3_and_says_so(tmp_path):
    """Nothing waits for a card that will not come back; the trial is no fault of the objective's."""
    lone = FakeNvml(tmp_path / "nvml")
    card = lone.add_card()
    running = commands.start(
        *("run", f"{OBJECTIVES}:wait_for_file", "--trials", "2", "--study", "on-a-lost-card", "--vram", "1GiB"),
        *("--env", f"GATE={tmp_path / 'gate'}", "--gpu", card.uuid, "--preload", "", "--state-dir", tmp_path / "state"),
        env={**lone.env, "VRAMPOOL_STOP_ASK_S": "0.5"},
    )
    logs = tmp_path / "state" / "logs" / "trials" / "on-a-lost-card"
    until(lambda: logs.is_dir() and list(logs.iterdir()), what="a running trial")
    lone.fail("*")
    done = commands.finish(running)
    assert done.code == 3, done
    error = next(line for line in done.err.splitlines() if line.startswith("error: "))
    assert "lost" in error
    assert "Traceback" not in done.err
    assert processes_of(tmp_path / "state") == []


def test_memory_is_measured_on_the_card_that_is_used(gpus: LivePool, cards: FakeNvml):
    """A07 on unlike cards, and the proof that it came back: use before, during and after a trial that holds 3 GiB."""
    _, large = cards.cards
    handle = gpus.run(f"{OBJECTIVES}:hold_card_memory", 1, vram="12GiB")
    trial = only(handle)
    facts = facts_of(trial)
    assert facts.device == large.uuid
    assert facts.peak_bytes is not None and 3 * GIB <= facts.peak_bytes < 4 * GIB
    releases = until(lambda: gpus.history().releases(handle.study_name), what="a release")
    assert [release["device_id"] for release in releases] == [large.uuid]
    assert releases[0]["used_before_bytes"] == 0 and releases[0]["used_after_bytes"] == 0
    assert releases[0]["residue_bytes"] == 0
    samples = [sample for sample in gpus.history().samples(large.uuid) if sample["used_bytes"]]
    assert max(sample["used_bytes"] for sample in samples) == 3 * GIB
    check_invariants(gpus)
