"""How many children wait: as many as are taken while one is made, as far as the host's memory allows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from vrampool_worker.children import spares
from vrampool_worker.children.importing import Importing
from vrampool_worker.children.spares import SpareShelf, private_bytes_of

MIB = 1024**2
QUICK_S = 0.1


@dataclass(eq=False)
class PaperChild:
    """A child that is ready when a test says so."""

    full: bool = True
    spawned_at_s: float = 0.0
    pid: int = 0
    ready: bool = False
    start_s: float = 0.0
    killed: bool = False
    importing: Importing | None = None

    def be_ready(self, start_s: float) -> None:
        self.ready, self.start_s = True, start_s

    def kill(self) -> None:
        self.killed = True


@dataclass
class Shelf:
    """A shelf on an injected clock, whose children take `start_s` to be ready, or `QUICK_S` where nothing is imported.

    Trials need what is imported, unless a test says otherwise.
    """

    start_s: float = 3.0
    needs: bool | None = True
    is_cheap: bool = False
    is_soon: bool = False
    is_needed: bool = True
    each_bytes: int = 300 * MIB
    options: dict[str, Any] = field(default_factory=dict)
    now_s: float = 100.0

    def __post_init__(self) -> None:
        self.made: list[tuple[PaperChild, float]] = []
        options = {"count": 1, "memory_bytes": 1200 * MIB, "cores": 16, **self.options}
        self.shelf = SpareShelf(
            self,
            lambda child: None,
            private_bytes=lambda pid: self.each_bytes,
            needed=lambda now_s: self.is_needed,
            **options,
        )

    def spawn(self, full: bool) -> Any:
        child = PaperChild(full, self.now_s)
        self.made.append((child, self.now_s + (self.start_s if full else QUICK_S)))
        return child

    def cheap(self) -> bool:
        return self.is_cheap

    def soon(self, now_s: float) -> bool:
        return self.is_soon

    @property
    def full(self) -> list[PaperChild]:
        """Those that import ahead."""
        return [child for child, _ in self.made if child.full]

    def pass_time(self, seconds: float, *, takes_per_s: float = 0.0, step_s: float = 0.05) -> int:
        """Let time pass while trials come; return how many of them found a child that was ready."""
        ready = owed = 0.0
        for _ in range(round(seconds / step_s)):
            self.now_s += step_s
            for child, ready_at_s in self.made:
                if not child.ready and self.now_s >= ready_at_s:
                    child.be_ready(self.start_s if child.full else QUICK_S)
            self.shelf.fill(self.now_s)
            owed += takes_per_s * step_s
            while owed >= 1:
                owed -= 1
                ready += self.shelf.take(self.needs).ready
                self.shelf.begun()
        return int(ready)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Shelf]]:
    shelves: list[Shelf] = []
    monkeypatch.setattr(spares.time, "monotonic", lambda: shelves[0].now_s)
    yield shelves


def test_one_waits_where_trials_are_rare(clock):
    shelf = Shelf()
    clock.append(shelf)
    shelf.pass_time(60, takes_per_s=0.05)
    assert shelf.shelf.wanted(shelf.now_s) == shelf.shelf.waiting == 1


def test_as_many_wait_as_are_taken_while_one_is_made(clock):
    shelf = Shelf()
    clock.append(shelf)
    shelf.pass_time(30, takes_per_s=1.0)
    assert shelf.shelf.wanted(shelf.now_s) in (4, 5)
    assert shelf.pass_time(30, takes_per_s=1.0) >= 25, "nearly every trial finds one ready"


def test_when_trials_become_rare_no_more_are_made_and_what_waits_in_vain_is_let_go(clock):
    shelf = Shelf()
    clock.append(shelf)
    shelf.pass_time(30, takes_per_s=1.0)
    made = len(shelf.made)
    shelf.pass_time(10)
    stock = shelf.shelf.waiting
    assert stock >= 3, "the next burst finds them"
    shelf.pass_time(90)
    assert shelf.shelf.wanted(shelf.now_s) == shelf.shelf.waiting == 1
    assert sum(child.killed for child in shelf.full) == stock - 1
    assert len(shelf.made) <= made + 4


def test_the_hosts_memory_bounds_them(clock):
    shelf = Shelf(each_bytes=500 * MIB)
    clock.append(shelf)
    shelf.pass_time(30, takes_per_s=2.0)
    assert shelf.shelf.wanted(shelf.now_s) == 2
    assert Shelf(each_bytes=5000 * MIB, options={"count": 2}).shelf.wanted(0.0) == 2, "what is asked for is kept"


def test_children_that_are_ready_at_once_need_no_stock(clock):
    """Forked ones."""
    shelf = Shelf(start_s=0.01, is_cheap=True)
    clock.append(shelf)
    shelf.pass_time(30, takes_per_s=8.0)
    assert shelf.shelf.wanted(shelf.now_s) == 1


def test_on_two_cores_they_are_made_one_after_another(clock):
    shelf = Shelf(options={"cores": 2})
    clock.append(shelf)
    most = 0
    for _ in range(40):
        shelf.pass_time(0.5, takes_per_s=2.0)
        most = max(most, sum(not child.ready for child in shelf.shelf._waiting))
    assert most == 1


def test_none_is_made_while_a_trial_is_handed_over(clock):
    """A new interpreter would take the processor from it; but a trial that never begins holds up nothing."""
    shelf = Shelf()
    clock.append(shelf)
    shelf.pass_time(10)
    made = len(shelf.made)
    shelf.shelf.take()
    shelf.pass_time(0.2)
    assert len(shelf.made) == made
    shelf.shelf.begun()
    shelf.pass_time(0.05)
    assert len(shelf.made) == made + 1
    shelf.pass_time(10)
    shelf.shelf.take()
    shelf.pass_time(0.4)
    assert len(shelf.made) == made + 2


def test_the_first_child_imports_nothing_and_the_others_wait_for_the_first_trial(clock):
    shelf = Shelf(needs=None)
    clock.append(shelf)
    shelf.pass_time(0.5)
    assert [child.full for child, _ in shelf.made] == [False]
    first = shelf.shelf.take(None)
    assert not first.full and first.ready
    shelf.pass_time(0.2)
    assert len(shelf.made) == 1, "it has the processor to itself"
    shelf.shelf.begun()
    shelf.pass_time(0.1)
    assert [child.full for child, _ in shelf.made] == [False, True]


def test_where_no_trial_comes_at_first_one_with_all_imports_takes_its_place(clock):
    shelf = Shelf()
    clock.append(shelf)
    shelf.pass_time(10)
    (quick, full) = (child for child, _ in shelf.made)
    assert quick.killed and not shelf.shelf.gone(quick), "that was no failure"
    assert full.full and not full.killed and shelf.shelf.take(None) is full


@pytest.mark.parametrize(
    ("needs", "imported_s", "full"),
    [(None, 1.0, False), (False, 1.0, False), (None, 2.9, True), (True, 1.0, True)],
    ids=["nobody knows", "it needs none", "nearly done", "it needs them"],
)
def test_a_trial_waits_for_imports_that_it_needs_or_that_are_nearly_done(clock, needs, imported_s, full):
    shelf = Shelf()
    clock.append(shelf)
    shelf.pass_time(10)
    assert shelf.shelf.take(True).ready
    shelf.shelf.begun()
    shelf.pass_time(0.05)
    shelf.pass_time(imported_s)
    coming = shelf.full[-1]
    assert not coming.ready
    taken = shelf.shelf.take(needs)
    assert taken.full is full and (taken is coming) is full


def test_one_that_is_made_for_a_trial_imports_what_it_is_known_to_need(clock):
    shelf = Shelf(options={"count": 0})
    clock.append(shelf)
    assert [shelf.shelf.take(needs).full for needs in (None, False, True)] == [False, False, True]
    shelf.is_cheap = True
    assert shelf.shelf.take(False).full


def test_none_is_made_while_children_will_be_cheap_in_a_moment(clock):
    shelf = Shelf(is_soon=True)
    clock.append(shelf)
    shelf.pass_time(20)
    assert shelf.made == [] and shelf.shelf.soon(shelf.now_s)
    shelf.is_soon, shelf.is_cheap = False, True
    shelf.pass_time(1)
    assert [child.full for child, _ in shelf.made] == [True]


def test_none_wait_where_none_are_wanted(clock):
    shelf = Shelf(options={"count": 0})
    clock.append(shelf)
    shelf.pass_time(20, takes_per_s=2.0)
    assert shelf.shelf.waiting == 0


def test_a_process_tells_what_it_holds_for_itself():
    import os

    before = private_bytes_of(os.getpid())
    held = bytearray(64 * MIB)
    assert private_bytes_of(os.getpid()) - before > 48 * MIB and len(held)
    assert private_bytes_of(2**22 + 1) == 0


def test_a_trial_that_is_held_to_little_gets_no_process_that_holds_as_much_already():
    """On the CPU imports ahead count to its lease: what was learned of bare processes is too little for a full one."""
    shelf = Shelf(needs=None, each_bytes=300 * MIB)
    shelf.pass_time(5.0)
    assert shelf.full and shelf.full[0].ready
    narrow = shelf.shelf.take(None, 330 * MIB)
    assert not narrow.full
    assert shelf.shelf.take(None, 340 * MIB).ready, "there is room for its imports and for itself"
    shelf.pass_time(5.0)
    assert shelf.shelf.take(True, 330 * MIB).full, "one that needs them has to hold them anyway"


def test_trials_that_take_none_of_those_that_wait_have_no_more_made():
    shelf = Shelf(needs=None, each_bytes=300 * MIB)
    shelf.pass_time(5.0)
    for _ in range(12):
        assert not shelf.shelf.take(None, 200 * MIB).full
        shelf.pass_time(0.5)
    assert shelf.shelf.waiting == 1


def test_where_nothing_is_imported_ahead_what_waits_is_as_good_as_a_new_one():
    shelf = Shelf(needs=None, is_cheap=True, each_bytes=30 * MIB)
    shelf.pass_time(5.0)
    assert shelf.shelf.take(None, 50 * MIB).ready
