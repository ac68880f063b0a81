"""A worker's side of `vrampool logs`: bounded readers, nothing lost while Redis is away, none kept for ever."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from vrampool_worker import output_desk
from vrampool_worker.children.log import ChildLog
from vrampool_worker.output_desk import MOST_READERS, READER_LIFE_S, OutputDesk


class Lane:
    """Does its work at once; a failing one is Redis that is away."""

    def __init__(self):
        self.away = False

    def submit(self, work, then):
        if self.away:
            then(None, ConnectionError("Redis is away"))
        else:
            then(work(), None)


@pytest.fixture
def desk(tmp_path, monkeypatch):
    clock = SimpleNamespace(now_s=100.0)
    monkeypatch.setattr(output_desk.time, "monotonic", lambda: clock.now_s)
    shown = []
    child = SimpleNamespace(log=ChildLog(10_000), gone=False)
    loop = SimpleNamespace(
        name="w",
        attempts={"l": SimpleNamespace(ticket=SimpleNamespace(study_name="digits", number=3), child=child)},
        queue_lane=Lane(),
        port=SimpleNamespace(show_output=lambda reader, pieces: shown.append((reader, pieces))),
        runner=SimpleNamespace(log_path=lambda study, number: tmp_path / f"{number}.log"),
    )
    made = OutputDesk(loop)
    return SimpleNamespace(desk=made, child=child, shown=shown, lane=loop.queue_lane, clock=clock, folder=tmp_path)


def ask(desk, reader="r", number=3):
    desk.desk.asked({"id": reader, "study": "digits", "number": number})


def data_of(desk, reader="r"):
    return b"".join(piece.data for name, pieces in desk.shown if name == reader for piece in pieces)


def test_a_reader_is_answered_at_once_even_if_nothing_was_printed_yet(desk):
    ask(desk)
    assert [piece.state for _, pieces in desk.shown for piece in pieces] == ["running"]


def test_each_byte_is_shown_once_and_the_end_is_told(desk):
    desk.child.log.add(b"one ")
    ask(desk)
    desk.desk.look()
    desk.child.log.add(b"two ")
    desk.desk.look()
    ask(desk)  # again, to be kept
    desk.child.log.add(b"three")
    desk.child.gone = True
    desk.desk.look()
    assert data_of(desk) == b"one two three"
    assert desk.shown[-1][1][-1].state == "ended"
    before = len(desk.shown)
    desk.desk.look()
    assert len(desk.shown) == before, "a reader that had the end is forgotten"


def test_what_could_not_be_sent_is_sent_at_the_next_look(desk):
    desk.lane.away = True
    desk.child.log.add(b"one")
    ask(desk)
    assert desk.shown == []
    desk.lane.away = False
    desk.desk.look()
    assert data_of(desk) == b"one"


def test_a_long_output_comes_in_parts_that_a_stream_holds(desk):
    desk.child.log = ChildLog(8 * 1024**2)
    desk.child.log.add(bytes(range(256)) * 12_000)
    ask(desk)
    first = len(data_of(desk))
    assert 0 < first <= output_desk._MOST_BYTES
    desk.child.gone = True
    for _ in range(5):
        desk.desk.look()
    assert data_of(desk) == bytes(range(256)) * 12_000
    assert desk.shown[-1][1][-1].state == "ended"


def test_a_reader_that_does_not_ask_again_is_left(desk):
    ask(desk)
    desk.clock.now_s += READER_LIFE_S + 1
    desk.child.log.add(b"late")
    desk.desk.look()
    assert data_of(desk) == b""


def test_readers_are_bounded(desk):
    desk.child.log.add(b"x")
    for number in range(MOST_READERS + 5):
        ask(desk, f"r{number}")
    assert len({name for name, _ in desk.shown}) == MOST_READERS


def test_a_trial_that_has_ended_is_read_from_its_file_and_one_without_is_said_to_be_missing(desk):
    (desk.folder / "7.log").write_bytes(b"of a file")
    ask(desk, "file", 7)
    ask(desk, "none", 8)
    assert data_of(desk, "file") == b"of a file"
    assert [(name, pieces[-1].state) for name, pieces in desk.shown] == [("file", "ended"), ("none", "missing")]
