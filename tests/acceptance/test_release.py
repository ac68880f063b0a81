"""Memory is seen back or it is named; what cannot be read or ended stops admission and harms no running trial."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from optuna.trial import TrialState
from support.commands import call
from support.fake_nvml import GIB, NOT_SUPPORTED, UNKNOWN, FakeNvml
from support.pools import PROBE, LivePool, PoolMaker, check_invariants, facts_of
from support.waiting import until

from vrampool.messages import EndKind, Verdict
from vrampool.units import MIB

HERE = Path(__file__).parent
OBJECTIVES = HERE / "release_objectives.py"
COMPLETE = TrialState.COMPLETE
#: In place of 30 s and 10 s.
GIVE_BACK_S, NVML_TIMEOUT_S = 1.0, 0.5


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> FakeNvml:
    fake = FakeNvml(tmp_path_factory.mktemp("nvml"))
    fake.add_card(24 * GIB, reserved_bytes=512 * MIB)
    return fake


@pytest.fixture(scope="module")
def started(own_settings: None, card: FakeNvml, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivePool]:
    """A worker on a card; its trials find a torch that pretends to allocate there."""
    maker = PoolMaker(lambda: tmp_path_factory.mktemp("release"))
    paths = [str(PROBE), str(HERE.parent / "support" / "pretend"), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    made = maker(
        gpu=card.cards[0].uuid,
        share=False,
        budget="100%",
        max_trials=4,
        sample_s=0.1,
        give_back_s=GIVE_BACK_S,
        nvml_timeout_s=NVML_TIMEOUT_S,
        env=card.env | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )
    made.vram, made.reserved_bytes = "4GiB", card.cards[0].reserved_bytes
    until(made.devices, what="a worker", timeout_s=60)
    yield made
    maker.close()


@pytest.fixture
def pool(started: LivePool, card: FakeNvml) -> Iterator[LivePool]:
    yield started
    card.heal()
    started.clear()


def state_of(pool: LivePool) -> str:
    return pool.device().state


def test_a_driver_that_hangs_stops_admission_and_not_the_running_trial(pool: LivePool, card, tmp_path, capsys):
    """The worker says so; the result of what ends meanwhile is told; afterwards all goes on by itself."""
    gate = tmp_path / "gate"
    first = pool.submit(f"{OBJECTIVES}:wait_for_file", env={"GATE": str(gate)})
    until(lambda: first.progress().running, what="a running trial")
    card.hang("*")
    until(lambda: state_of(pool) == "blind", what="a worker that says it is blind")
    second = pool.submit(f"{OBJECTIVES}:one")
    shown = call(capsys, "status", "--state-dir", pool.state_dir).out
    assert f"has not answered for {NVML_TIMEOUT_S:g} s" in " ".join(shown.split())
    gate.touch()
    assert [trial.state for trial in first.wait(20).trials] == [COMPLETE], "told while the driver hangs"
    assert state_of(pool) == "blind"
    assert (second.progress().running, second.progress().finished) == (0, 0)
    card.heal()
    assert [trial.state for trial in second.wait(20).trials] == [COMPLETE]
    check_invariants(pool)


def test_what_the_driver_does_not_tell_is_named_and_nothing_stops(pool: LivePool, card, capsys):
    card.fail("*", UNKNOWN, "list")
    card.fail("*", NOT_SUPPORTED, "memory2")
    card.fail("*", NOT_SUPPORTED, "busy")
    until(lambda: len(pool.device().unknown) == 3, what="a record that names three")
    assert set(pool.device().unknown) == {"process_bytes", "driver_reserved_bytes", "busy"}
    shown = " ".join(call(capsys, "status", "--state-dir", pool.state_dir).out.split())
    assert "it does not tell the driver's own part, what each process holds, how busy it is" in shown
    assert [trial.state for trial in pool.run(f"{OBJECTIVES}:one").trials] == [COMPLETE]
    card.heal()
    until(lambda: not pool.device().unknown, what="a record that names none")


def test_the_overhead_of_a_process_is_learned_and_kept_for_the_next_worker(pool: LivePool, tmp_path):
    """Before its first lease the next one knows what a process takes on this kind of card, driver and torch."""
    gate = tmp_path / "gate"
    assert pool.device().overhead_bytes == 780 * MIB, "a guess, at first"
    handle = pool.submit(f"{OBJECTIVES}:hold_on_card", env={"GATE": str(gate)})
    until(lambda: pool.device().overhead_bytes == 620 * MIB, what="an overhead that was learned", timeout_s=30)
    gate.touch()
    handle.wait(30)
    keys = pool.pool.connection.zrange("vrampool:vrampool:overheads", 0, -1)
    until(lambda: pool.pool.connection.zrange("vrampool:vrampool:overheads", 0, -1), what=f"a kept overhead: {keys}")
    ((name, kept),) = pool.pool.connection.zrange("vrampool:vrampool:overheads", 0, -1, withscores=True)
    assert name.startswith(b"NVIDIA Fake RTX|999.99.fake|") and kept == 620 * MIB
    before = pool.device()
    os.kill(before.pid, 9)
    until(lambda: {item.name for item in pool.devices()} - {before.name}, what="another worker", timeout_s=30)
    (other,) = [item for item in pool.devices() if item.name != before.name]
    assert other.overhead_bytes == 620 * MIB
    until(lambda: len(pool.devices()) == 1, what="the end of the old record", timeout_s=30)
    facts = facts_of(pool.run(f"{OBJECTIVES}:one").trials[0])
    assert facts.lease_bytes is not None and facts.cap_bytes == facts.lease_bytes - 620 * MIB


def test_a_trial_that_no_cap_holds_is_ended_before_it_harms_its_neighbour(pool: LivePool, tmp_path):
    """Only torch's allocator has a cap; what another library takes beyond the budget shows on the card."""
    gate = tmp_path / "gate"
    meek = pool.submit(f"{OBJECTIVES}:wait_for_file", env={"GATE": str(gate)})
    until(lambda: meek.progress().running, what="a neighbour")
    greedy = pool.submit(f"{OBJECTIVES}:hold_beyond")
    first = until(lambda: greedy.trials and greedy.trials[0].state.is_finished() and greedy.trials[0], what="its end")
    facts = facts_of(first)
    assert (facts.end, facts.verdict) == (EndKind.OOM, Verdict.CULPRIT)
    assert "held 25.0 GiB of the device, more than its lease of 4.0 GiB" in facts.text
    assert "only torch's allocator is held to a cap" in facts.text
    greedy.cancel("seen")
    gate.touch()
    assert [trial.state for trial in meek.wait(30).trials] == [COMPLETE]
    greedy.wait(30)


FREEZER = Path("/sys/fs/cgroup/freezer")


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A control group whose processes cannot be killed while it is frozen: that is so in version 1 alone."""
    group = FREEZER / f"vrampool-{uuid.uuid4().hex}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("needs a writable freezer of control groups, version 1")
    yield group
    (group / "freezer.state").write_text("THAWED")
    until(lambda: not (group / "cgroup.procs").read_text(), what="an empty group")
    group.rmdir()


def test_a_child_that_cannot_be_killed_keeps_its_lease_and_quarantines_the_device(
    pool: LivePool, freezer, tmp_path, capsys
):
    """As one that hangs in a driver. When it is gone its result is told, its lease released, and a resume lifts it."""
    env = {"GATE": str(tmp_path / "gate"), "TOLD": str(tmp_path / "pid")}
    handle = pool.submit(f"{OBJECTIVES}:tell_pid_and_wait", env=env)
    until((tmp_path / "pid").exists, what="a running trial")
    (freezer / "cgroup.procs").write_text((tmp_path / "pid").read_text())
    (freezer / "freezer.state").write_text("FROZEN")
    handle.cancel("by the test")
    until(lambda: state_of(pool) == "quarantined", what="a quarantine", timeout_s=30)
    assert f"the process of {handle.study_name}/0 cannot be killed" in pool.device().reason
    assert [item.lease_bytes for item in pool.device().running] == [4 * GIB], "it keeps its lease"
    (freezer / "freezer.state").write_text("THAWED")
    until(lambda: not pool.device().running, what="a released lease", timeout_s=30)
    assert state_of(pool) == "quarantined", "somebody should look first"
    assert call(capsys, "resume", "--all", "--state-dir", pool.state_dir).code == 0
    until(lambda: state_of(pool) == "ready", what="a device that is ready")
    check_invariants(pool)


# What was in use counts for a minute more, so these come last.


def test_memory_that_stays_is_named_and_its_card_quarantined_when_it_grows(pool: LivePool, card, tmp_path, capsys):
    """One trial may leave something; three of them say that something is wrong. A resume waits until it is gone."""
    card.forget_dead()
    card.set_linger("*", None)
    at = ("--state-dir", pool.state_dir)
    numbers = []
    for position in range(3):
        assert state_of(pool) == "ready"
        handle = pool.run(f"{OBJECTIVES}:hold_a_gib", study_name=f"leaving-{position}")
        numbers.append(facts_of(handle.trials[0]).pid)
        until(lambda: not pool.device().running, what="a released lease")
        releases = until(lambda name=handle.study_name: pool.history().releases(name), what="a release")
        assert releases[-1]["residue_bytes"] == GIB
        assert releases[-1]["held_by"] == [
            f"pid {numbers[-1]} holds 1.0 GiB; the process is gone, only the driver still lists it"
        ]
    until(lambda: state_of(pool) == "quarantined", what="a quarantine")
    assert "3 trials left memory in use that nobody of ours holds, 3.0 GiB in all" in pool.device().reason
    shown = " ".join(call(capsys, "status", *at).out.split())
    assert f"left behind: leaving-2/0 left 1.0 GiB: pid {numbers[-1]} holds 1.0 GiB" in shown
    assert "did not come back, 1.0 GiB at most" in shown

    waiting = pool.submit(f"{OBJECTIVES}:one")
    assert call(capsys, "resume", "--all", *at).code == 0
    until(lambda: "when they are gone" in pool.device().reason, what="a reason")
    assert state_of(pool) == "quarantined" and waiting.progress().finished == 0
    card.set_linger("*", 0)
    assert [trial.state for trial in waiting.wait(30).trials] == [COMPLETE]
    until(lambda: state_of(pool) == "ready" and pool.device().leftovers == (), what="a device that is as before")


def test_a_process_that_holds_what_a_trial_left_is_named_by_command_and_age(pool: LivePool, card, tmp_path):
    """It is none that the keeper could end: one of a container that the trial has started. It is never signalled."""
    gate = tmp_path / "gate"
    handle = pool.submit(f"{OBJECTIVES}:wait_for_file", env={"GATE": str(gate)})
    until(lambda: handle.progress().running, what="a running trial")
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        card.hang("*")  # so that it is first seen when the trial has ended: before that it would be a stranger
        card.add_process("*", other.pid, 2 * GIB)
        gate.touch()
        handle.wait(30)
        card.heal()
        (release,) = until(lambda: pool.history().releases(handle.study_name), what="a release", timeout_s=30)
        assert release["residue_bytes"] == 2 * GIB
        (holder,) = release["held_by"]
        assert holder.startswith(f"pid {other.pid} ({sys.executable} -c import time; time.sleep(600), started ")
        assert holder.endswith("s ago) holds 2.0 GiB")
        expected = (f"{handle.study_name}/0 left 2.0 GiB: {holder}",)
        until(lambda: pool.device().leftovers == expected, what="a record that names it")
        assert other.poll() is None
    finally:
        card.remove_process("*", other.pid)
        other.kill()
        other.wait()
    until(lambda: not pool.device().leftovers, what="an end of it")
