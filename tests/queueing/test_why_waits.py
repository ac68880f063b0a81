"""Why a trial waits, in one sentence over all devices."""

from __future__ import annotations

import dataclasses

import pytest

from vrampool.queueing import RunningTrial, WaitingJob, WorkerRecord
from vrampool.waiting import device_labels, why_each_waits

GIB = 1024**3
JOB = WaitingJob("sub1-7", "sub1", 7, int(14.2 * GIB), 1000.0, study="digits", waits_s=40.0)


def worker(index: int, free_gib: float, **changes) -> WorkerRecord:
    free_bytes = int(free_gib * GIB)
    running = () if free_gib == 20.4 else (RunningTrial("digits", 1, int(20.4 * GIB) - free_bytes, None, 0.0),)
    record = WorkerRecord(
        name=f"w{index}",
        host="hub",
        pid=1,
        device_id=f"GPU-{index}",
        device_name=f"GPU {index} (NVIDIA H200)",
        device_kind="cuda",
        total_bytes=24 * GIB,
        budget_bytes=int(20.4 * GIB),
        free_bytes=free_bytes,
        slots=16,
        state="ready",
        reason=f"GPU {index} has {free_gib} GiB free of its 20.4 GiB",
        running=running,
        most_bytes=int(20.4 * GIB),
    )
    return dataclasses.replace(record, **changes)


def why(*workers: WorkerRecord, others: tuple[WaitingJob, ...] = (), **changes) -> str:
    job = dataclasses.replace(JOB, **changes)
    return why_each_waits([job, *others], workers)[job.job_id]


OTHER = WaitingJob("sub1-31", "sub1", 31, 18 * GIB, 900.0, study="digits", earmarked_by="w1")


def test_it_names_what_each_device_has_and_what_each_is_kept_free_for():
    sentence = why(worker(0, 9.1), worker(1, 15, earmark="sub1-31", room_bytes=GIB), others=(OTHER,))
    assert sentence == "waits for 14.2 GiB: GPU 1 is earmarked for trial 31, GPU 0 has 9.1 GiB free"


def test_a_trial_of_another_study_is_named_with_it():
    other = dataclasses.replace(OTHER, study="large")
    assert "GPU 1 is earmarked for large/31" in why(worker(1, 15, earmark="sub1-31", room_bytes=0), others=(other,))


def test_it_says_which_device_is_kept_free_for_the_trial_itself():
    sentence = why(worker(0, 12), worker(1, 9.1, earmark="sub1-7"), earmarked_by="w1", passed_over_s=130.0)
    assert (
        sentence == "waits for 14.2 GiB: GPU 1 is earmarked for it and has 9.1 GiB free so far, GPU 0 has 12.0 GiB free"
    )


def test_how_long_it_was_passed_over_is_told():
    assert why(worker(0, 9.1), passed_over_s=85.4) == "waits for 14.2 GiB: GPU 0 has 9.1 GiB free; passed over for 85 s"


@pytest.mark.parametrize(
    ("changes", "job", "part"),
    [
        (
            {"refused": {"sub1": "its bundle needs Python 3.12"}},
            {},
            "GPU 0 cannot run it (its bundle needs Python 3.12)",
        ),
        ({}, {"refused_by": ("w0",)}, "GPU 0 gave it back for good"),
        ({"device_kind": "cpu"}, {"requires": ("cuda", "fp8")}, "GPU 0 lacks cuda and fp8"),
        ({}, {"vram_bytes": 30 * GIB}, "GPU 0 may hold no more than 20.4 GiB"),
    ],
    ids=["refused", "given back", "lacks", "too large"],
)
def test_a_device_that_can_never_run_it_says_why_and_so_does_a_whole_pool_of_them(changes, job, part):
    sentence = why(worker(0, 20, **changes), **job)
    assert part in sentence and sentence.endswith("; no device of the pool can run it as it is")
    mixed = why(worker(0, 20, **changes), worker(1, 9.1, capabilities=("fp8",)), **{**job, "vram_bytes": 14 * GIB})
    assert "no device" not in mixed


@pytest.mark.parametrize("state", ["paused", "draining", "quarantined", "blind"])
def test_a_device_that_takes_nothing_says_why(state):
    sentence = why(worker(0, 20, state=state, reason=f"GPU 0 is {state}: by hand"))
    assert sentence == f"waits for 14.2 GiB: GPU 0 is {state}: by hand"


def test_memory_that_others_hold_is_told_apart_from_what_trials_hold():
    assert "GPU 0 has only 12.0 GiB beside what other programs hold" in why(worker(0, 12, most_bytes=12 * GIB))


def test_a_device_that_is_avoided_says_for_how_long():
    sentence = why(worker(0, 20), avoid=("GPU-0",), avoid_until=1070.0)
    assert sentence == "waits for 14.2 GiB: GPU 0 is avoided for 30 s more, as its memory ran out there"
    assert "avoided" not in why(worker(0, 20), avoid=("GPU-0",), avoid_until=1039.0)


def test_a_submission_s_own_limit_for_a_device_is_told():
    sentence = why(worker(0, 20, full_submissions=("sub1",)))
    assert sentence == "waits for 14.2 GiB: GPU 0 runs as many trials of its submission as it may"


def test_a_device_with_nothing_to_give_says_it_in_the_ledgers_words():
    full = worker(0, 0, reason="GPU 0 runs 16 of at most 16 trials")
    assert why(full) == "waits for 14.2 GiB: GPU 0 runs 16 of at most 16 trials"


def test_a_trial_that_wants_a_whole_device_is_told_what_runs_there():
    two = worker(0, 4, running=(RunningTrial("digits", 1, GIB, None, 0.0),) * 2)
    sentence = why(two, worker(1, 9.1), vram_bytes=None)
    assert sentence == "waits for a device of its own: GPU 1 runs 1 trial, GPU 0 runs 2 trials"


def test_without_workers_the_remedy_is_told():
    assert "no worker is running: start one with `vrampool worker --gpu all`" in why()


def test_devices_of_several_hosts_are_told_apart():
    one, two = worker(0, 9.1), dataclasses.replace(worker(0, 5), name="w9", host="node7")
    assert device_labels([one, two]) == {"w0": "GPU 0 of hub", "w9": "GPU 0 of node7"}
    assert "GPU 0 of hub has 9.1 GiB free, GPU 0 of node7 has 5.0 GiB free" in why(one, two)
    shared = dataclasses.replace(worker(0, 5), name="w9")
    assert set(device_labels([one, shared]).values()) == {"GPU 0 of hub (w0)", "GPU 0 of hub (w9)"}


def test_of_many_devices_the_nearest_are_named_and_the_rest_counted():
    sentence = why(*(worker(index, index / 10) for index in range(1, 65)))
    assert sentence.startswith("waits for 14.2 GiB: GPU 64 has 6.4 GiB free, GPU 63 has 6.3 GiB free")
    assert sentence.endswith("GPU 57 has 5.7 GiB free, and 56 more devices")


def test_a_device_that_has_room_is_named_first():
    assert why(worker(0, 3), worker(1, 20)).startswith("waits for 14.2 GiB: GPU 1 has room for it")


def test_who_stands_far_back_is_told_its_place():
    line = [dataclasses.replace(JOB, job_id=f"sub1-{number}", number=number) for number in range(70)]
    assert (
        "; it is number 70 in line, and devices look at the first 64" in why_each_waits(line, [worker(0, 3)])["sub1-69"]
    )


def test_a_whole_device_with_no_more_than_what_it_failed_with_is_not_enough():
    """The larger card is away: it waits, and says so."""
    sentence = why(worker(0, 20.4), vram_bytes=None, beyond_bytes=int(20.4 * GIB))
    assert "GPU 0 may hold no more than 20.4 GiB, and it has failed with that much" in sentence
    assert sentence.endswith("no device of the pool can run it as it is")
    full = worker(0, 20.4, most_bytes=15 * GIB)
    assert "GPU 0 has only 15.0 GiB beside" in why(full, vram_bytes=None, beyond_bytes=18 * GIB)
    assert "GPU 0 has room for it" in why(worker(0, 20.4), vram_bytes=None, beyond_bytes=18 * GIB)
