"""The proof of release, summed up for people."""

from __future__ import annotations

from vrampool.cli.memory_notes import device_notes, release_words
from vrampool.queueing import MpsState, WorkerRecord, summarise
from vrampool.units import GIB, MIB


def release(device: str, back_s: float, residue_bytes: int | None) -> dict:
    return {"device_id": device, "back_s": back_s, "residue_bytes": residue_bytes, "at": 0.0}


def words(*releases: dict) -> str:
    (summary,) = summarise(releases).values()
    return release_words(summary)


def test_devices_are_told_apart_and_the_last_and_the_worst_are_kept():
    found = summarise([release("a", 0.3, 0), release("b", 31.0, 2 * GIB), release("a", 0.1, 16 * MIB)])
    assert found["a"].count == 2 and found["a"].left_behind == 0
    assert (found["a"].last_back_s, found["a"].most_back_s) == (0.1, 0.3)
    assert (found["a"].last_residue_bytes, found["a"].most_residue_bytes) == (16 * MIB, 16 * MIB)
    assert (found["b"].left_behind, found["b"].most_residue_bytes) == (1, 2 * GIB)


def test_it_is_said_in_one_line():
    assert words(release("a", 0.3, 0), release("a", 0.1, 0)) == (
        "memory of the last 2 trials came back: 0.1 s after the last ended, 0.3 s at most"
    )
    assert words(release("a", 31, 2 * GIB), release("a", 0.1, 0)) == (
        "memory of 1 of the last 2 trials did not come back, 2.0 GiB at most; else 0.1 s after the last ended, "
        "31.0 s at most"
    )
    assert words(release("a", 0.3, None)) == "the device does not tell whether the memory of the last trial came back"


def test_what_is_left_and_what_is_not_known_have_lines_of_their_own():
    record = WorkerRecord(
        *("w", "h", 1, "GPU-1", "GPU 0", "cuda", 1, 1, 1, 1, "ready"),
        leftovers=("digits/3 left 1.0 GiB: pid 7 (train, started 2 min ago) holds 1.0 GiB",),
        unknown=("process_bytes", "busy"),
        mps=MpsState("off", "its daemon has ended"),
    )
    again = WorkerRecord.from_json(record.to_json() | {"leftovers": list(record.leftovers)})
    assert again == record
    assert list(device_notes(again, None)) == [
        "left behind: digits/3 left 1.0 GiB: pid 7 (train, started 2 min ago) holds 1.0 GiB",
        "MPS is off: its daemon has ended",
        "it does not tell what each process holds, how busy it is",
    ]
