"""How often exact sizes are taken: they cost, sums do not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vrampool.units import MIB
from vrampool_worker.devices import trees
from vrampool_worker.devices.trees import TreeMemory

PAGE = os.sysconf("SC_PAGE_SIZE")
KEEPER, TRIAL, LOADER = 10, 11, 12
#: One exact size takes so long on the clock of these tests.
COST_S = 0.030


class Proc:
    """A /proc of a keeper, its trial and a loader below that. Exact sizes are counted."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now_s = 100.0
        self.exact = 0
        (root / "thread-self").mkdir(parents=True)
        (root / "thread-self/children").write_text("")
        self.set(KEEPER, 8 * MIB, 8 * MIB, children="11")
        self.set(TRIAL, 100 * MIB, 60 * MIB, children="12")
        self.set(LOADER, 100 * MIB, 60 * MIB)

    def set(self, pid: int, resident_bytes: int, exact_bytes: int, *, children: str | None = None) -> None:
        task = self.root / str(pid) / "task" / str(pid)
        task.mkdir(parents=True, exist_ok=True)
        if children is not None or not (task / "children").exists():
            (task / "children").write_text(children or "")
        (self.root / str(pid) / "statm").write_text(f"99999 {resident_bytes // PAGE} 1 1 0 1 0")
        (self.root / str(pid) / "smaps_rollup").write_text(
            f"00-ff ---p [rollup]\nRss: 1 kB\nPss: {exact_bytes // 1024} kB\n"
        )

    def clock(self) -> float:
        return self.now_s


@pytest.fixture
def proc(tmp_path, monkeypatch):
    fake = Proc(tmp_path)
    exact = trees.proportional_bytes

    def counted(pid, root):
        if pid == TRIAL:
            fake.exact += 1
            fake.now_s += COST_S
        return exact(pid, root)

    monkeypatch.setattr(trees, "proportional_bytes", counted)
    return fake


@pytest.fixture
def memory(proc):
    return TreeMemory(proc=proc.root, clock=proc.clock)


def test_the_keeper_itself_is_not_the_trials(memory):
    assert memory.measure({KEEPER: None}) == {KEEPER: 120 * MIB}


def test_one_process_shares_with_nobody_so_its_sum_will_do(proc, memory):
    proc.set(TRIAL, 100 * MIB, 60 * MIB, children="")
    assert memory.measure({KEEPER: 50 * MIB}) == {KEEPER: 100 * MIB}
    assert proc.exact == 0


def test_while_nothing_grows_exact_sizes_take_a_twentieth_of_the_time(proc, memory):
    until_s = proc.now_s + 10
    while proc.now_s < until_s:
        memory.measure({KEEPER: 500 * MIB})
        proc.now_s += 0.05
    assert 10 < proc.exact < 20  # of 0.03 s each, in 10 s


def test_a_sum_under_the_limit_needs_no_exact_size(proc, memory):
    memory.measure({KEEPER: 500 * MIB})
    proc.set(TRIAL, 200 * MIB, 160 * MIB)
    memory.measure({KEEPER: 500 * MIB})
    assert proc.exact == 1


def test_a_trial_that_may_be_over_its_limit_is_measured_at_once(proc, memory):
    memory.measure({KEEPER: 150 * MIB})
    proc.set(TRIAL, 200 * MIB, 160 * MIB)
    assert memory.measure({KEEPER: 150 * MIB}) == {KEEPER: 220 * MIB}
    assert proc.exact == 2


def test_a_possible_new_peak_is_looked_at_sooner(proc, memory):
    memory.measure({KEEPER: 500 * MIB})
    proc.set(TRIAL, 200 * MIB, 160 * MIB)
    proc.now_s += COST_S * 5
    assert memory.measure({KEEPER: 500 * MIB}) == {KEEPER: 220 * MIB}


def test_a_kernel_without_lists_of_children_is_looked_through(proc, memory):
    (proc.root / "thread-self/children").unlink()
    trees._lists_children.cache_clear()
    for pid, parent in ((KEEPER, 1), (TRIAL, KEEPER), (LOADER, TRIAL)):
        (proc.root / str(pid) / "stat").write_text(f"{pid} (a (b) c) S {parent} 1 1 0")
    assert memory.measure({KEEPER: None}) == {KEEPER: 120 * MIB}
    trees._lists_children.cache_clear()


def test_a_process_that_may_not_be_looked_into_counts_with_its_resident_pages(proc, memory):
    (proc.root / str(LOADER) / "smaps_rollup").unlink()
    assert memory.measure({KEEPER: None}) == {KEEPER: 160 * MIB}
