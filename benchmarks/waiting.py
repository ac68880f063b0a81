"""Three ways to treat a trial that waits too long, simulated: `python -m benchmarks.waiting`. Needs no device.

Four cards of 68 GiB, a random stream of 800 trials that ask for 4, 8, 16 or 40 GiB; times in mean runs of a trial. What
others may have beside an earmark comes from the ledger's own function; the rest is the rule of `earmarks.lua` in short.
The tests simulate the real scripts (`tests/queueing/test_waiting_bound.py`); this one is quick, to compare ways.
"""

from __future__ import annotations

import heapq
import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from vrampool_worker.ledger.earmarks import room_beside

CARDS, CARD_GIB = 4, 68
SIZES, WEIGHTS = (4, 8, 16, 40), (45, 30, 18, 7)
TRIALS, SEEDS = 800, 12
LIMIT = 2.0
WINDOW = 64

#: What others may have on a card that is kept free for a trial: leases on it, free GiB, GiB asked for.
Beside = Callable[[list[int], int, int], int]
WAYS: dict[str, Beside | None] = {
    "never earmarked": None,
    "earmarked, nothing else is taken": lambda held, free, request: 0,
    "earmarked, what delays nobody is taken": lambda held, free, request: min(
        free, room_beside(held, CARD_GIB, request)
    ),
}


@dataclass
class Pool:
    """Cards and the trials that wait for them. Trials are numbers, their sizes in GiB."""

    beside: Beside | None
    sizes: list[int]
    held: list[dict[int, int]] = field(default_factory=lambda: [{} for _ in range(CARDS)])
    waiting: list[int] = field(default_factory=list)
    passed_at: dict[int, float] = field(default_factory=dict)
    marks: dict[int, int] = field(default_factory=dict)  #: trial -> card

    def free(self, card: int) -> int:
        return CARD_GIB - sum(self.held[card].values())

    def take(self, card: int, now: float) -> int | None:
        """Return the trial that the card takes now, or None."""
        if self.beside is not None:
            self._mark(now)
        free, room = self.free(card), self.free(card)
        kept = next((trial for trial, marked in self.marks.items() if marked == card), None)
        if kept is not None and self.beside is not None:
            if self.sizes[kept] <= free:
                return kept
            room = self.beside(list(self.held[card].values()), free, self.sizes[kept])
        for trial in self.waiting[:WINDOW]:
            if trial != kept and self.sizes[trial] <= room:
                return trial
            self.passed_at.setdefault(trial, now)
        return None

    def _mark(self, now: float) -> None:
        late = [trial for trial in self.waiting if now - self.passed_at.get(trial, now) > LIMIT]
        for trial in sorted(late, key=lambda item: self.passed_at[item]):
            cards = [card for card in range(CARDS) if card not in self.marks.values()]
            if trial not in self.marks and cards:
                size = self.sizes[trial]
                self.marks[trial] = min(cards, key=lambda card: (max(0, size - self.free(card)), len(self.held[card])))

    def start(self, card: int, trial: int) -> None:
        self.waiting.remove(trial)
        self.marks.pop(trial, None)
        self.held[card][trial] = self.sizes[trial]


def simulate(beside: Beside | None, seed: int, load: float) -> tuple[float, dict[int, list[float]]]:
    """Return the share of memory in use until the last trial ended, and the waits by size."""
    rng = random.Random(seed)
    mean = sum(size * weight for size, weight in zip(SIZES, WEIGHTS, strict=True)) / sum(WEIGHTS)
    at, stream = 0.0, []
    for _ in range(TRIALS):
        at += rng.expovariate(load * CARDS * CARD_GIB / mean)
        stream.append((at, rng.choices(SIZES, WEIGHTS)[0], rng.lognormvariate(-0.32, 0.8)))
    pool = Pool(beside, [size for _, size, _ in stream])
    events = [(come, trial, -1) for trial, (come, _, _) in enumerate(stream)]
    heapq.heapify(events)
    used, before, waits = 0.0, 0.0, {size: list[float]() for size in SIZES}
    while events:
        now, trial, card = heapq.heappop(events)
        used += sum(sum(held.values()) for held in pool.held) * (now - before)
        before = now
        if card < 0:
            pool.waiting.append(trial)
        else:
            del pool.held[card][trial]
        for card, taken in _all_taken(pool, now, rng):
            waits[pool.sizes[taken]].append(now - stream[taken][0])
            heapq.heappush(events, (now + stream[taken][2], taken, card))
    return used / (CARDS * CARD_GIB * before), waits


def _all_taken(pool: Pool, now: float, rng: random.Random) -> Iterator[tuple[int, int]]:
    for card in rng.sample(range(CARDS), CARDS):
        while (trial := pool.take(card, now)) is not None:
            pool.start(card, trial)
            yield card, trial


def main() -> None:
    """Print the table of docs/waiting.md."""
    table = Table(title=f"{SEEDS} streams of {TRIALS} trials; age limit {LIMIT:g} mean runs", box=None)
    for column in ("asked for", "way", "memory used", *(f"{size} GiB: mean, longest wait" for size in SIZES)):
        table.add_column(column, justify="left" if column == "way" else "right")
    for load in (0.8, 0.92, 1.2):
        for name, beside in WAYS.items():
            runs = [simulate(beside, seed, load) for seed in range(SEEDS)]
            cells = []
            for size in SIZES:
                waits = [wait for _, by_size in runs for wait in by_size[size]]
                cells.append(f"{statistics.mean(waits):.2f}, {max(waits):.1f}")
            table.add_row(f"{load:.0%}", name, f"{statistics.mean(share for share, _ in runs):.1%}", *cells)
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
