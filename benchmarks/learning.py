"""Requests learned from parameters against "largest so far", over recorded peaks: `python -m benchmarks.learning`.

The traces (`tests/data/traces/`) are attempts on a NVIDIA H200 with their parameters, peaks and running times. Here the
trials of one family are taken in a random order, as a random sampler might have asked for them: each is sized by what
the ones before it have taught, and then counts as run. Needs no GPU.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np

from vrampool.memory.learning.learned import Learned, learn
from vrampool.memory.peaks import PastPeak
from vrampool.memory.requests import next_request

TRACES = Path(__file__).parents[1] / "tests" / "data" / "traces"
FAMILIES = ("mlp", "cnn", "resnet", "transformer")
#: Where the model is fitted anew. A real pool fits after each trial; here a request may be up to 25 trials behind.
FITS = (3, 5, 8, 12, 20, 35, 55, 80)
#: Orders that are replayed whole, and orders of which only the trials after the 80th are predicted.
WHOLE_ORDERS, LATE_ORDERS = 5, 16


@dataclass(frozen=True)
class Row:
    """One trial of a trace that ended well."""

    past: PastPeak
    run_s: float


@dataclass
class Figures:
    """What came of replaying a family."""

    errors: dict[int, list[float]] = field(default_factory=lambda: {20: [], 80: []})  #: after so many trials
    net_errors: dict[int, list[float]] = field(default_factory=lambda: {20: [], 80: []})  #: overhead left out
    under: dict[int, list[bool]] = field(default_factory=lambda: {20: [], 80: []})
    reserved: float = 0.0  #: request x time, byte seconds
    reserved_before: float = 0.0  #: the same by "largest so far"
    retried: int = 0  #: attempts that would have run out of memory
    retried_before: int = 0

    def median_error(self, after: int) -> float:
        return median(self.errors[after])

    def under_share(self, after: int) -> float:
        return sum(self.under[after]) / len(self.under[after])

    @property
    def reserved_part(self) -> float:
        return self.reserved / self.reserved_before


def load(family: str) -> list[Row]:
    """Read a trace. A trial that was retried counts once, with the attempt that ended well."""
    rows = []
    for line in (TRACES / f"{family}.jsonl").read_text().splitlines():
        raw = json.loads(line)
        if raw["end"] != "complete":
            continue
        past = PastPeak(
            raw["peak_bytes"],
            # It ended well, but had to free its cache on the way: with more room it might have held more.
            censored=raw["num_alloc_retries"] > 0,
            params=raw["params"],
            overhead_bytes=raw["overhead_bytes"],
            device="NVIDIA H200",
            finished=True,
        )
        rows.append(Row(past, raw["run_s"]))
    return rows


def replay(rows: Sequence[Row], seed: int, figures: Figures, *, late: bool = False) -> None:
    """Replay one random order.

    Args:
        rows: The trials of a family.
        seed: Of the order.
        figures: Where to add what came of it.
        late: Only the trials after the 80th are predicted, from one fit.
    """
    order = [rows[index] for index in np.random.default_rng(seed).permutation(len(rows))]
    model: Learned | None = None
    for index, row in enumerate(order):
        if index < 80 and late:
            continue
        past = [earlier.past for earlier in order[:index]]
        if (not late and index in FITS) or index == 80:
            model = learn(past, before=model) or model
        if index == 0:
            continue  # unknown: it has the device to itself, both ways
        overhead_bytes = row.past.overhead_bytes
        learned = next_request("auto", past, overhead_bytes, params=row.past.params, model=model)
        largest = next_request("auto", past)
        for after in (20, 80):
            if (after == 20 and late) or index < after:
                continue
            if not late or after == 80:
                _note(figures, after, row, learned.request_bytes, learned.predicted_bytes)
        if not late:
            spent, tries = _reserve(learned.request_bytes, row)
            before, tries_before = _reserve(largest.request_bytes, row)
            figures.reserved += spent
            figures.reserved_before += before
            figures.retried += tries
            figures.retried_before += tries_before


def _note(figures: Figures, after: int, row: Row, asked: int | None, predicted: int | None) -> None:
    peak = row.past.peak_bytes
    figures.under[after].append(asked is not None and asked < peak)
    if predicted is not None and not row.past.censored:  # of a lower bound nobody knows the error
        figures.errors[after].append(abs(predicted - peak) / peak)
        figures.net_errors[after].append(abs(predicted - peak) / (peak - (row.past.overhead_bytes or 0)))


def _reserve(asked: int | None, row: Row) -> tuple[float, int]:
    """Return the byte seconds a trial reserves, with its attempts that run out of memory, and how many those are."""
    if asked is None:
        return 0.0, 0
    spent, tries = 0.0, 0
    while asked < row.past.peak_bytes:
        spent += asked * row.run_s
        tries += 1
        asked = max(asked * 3 // 2, int(1.2 * min(row.past.peak_bytes, asked)))
    return spent + asked * row.run_s, tries


def evaluate(family: str) -> Figures:
    """Replay a family in all orders."""
    rows = load(family)
    figures = Figures()
    for seed in range(LATE_ORDERS):
        replay(rows, seed, figures, late=seed >= WHOLE_ORDERS)
    return figures


def table(found: dict[str, Figures]) -> str:
    """Return the figures as a table in Markdown."""
    lines = [
        "| family | predictions after 20 / 80 | too low | median error | the same without overhead | memory reserved "
        "| out of memory, of 100 |",
        "|---|---|---|---|---|---|---|",
    ]
    for family, figures in found.items():
        trials = WHOLE_ORDERS * (len(load(family)) - 1) / 100
        net = [median(figures.net_errors[after]) for after in (20, 80)]
        lines.append(
            f"| {family} | {len(figures.under[20])} / {len(figures.under[80])} "
            f"| {figures.under_share(20):.1%} / {figures.under_share(80):.1%} "
            f"| {figures.median_error(20):.1%} / {figures.median_error(80):.1%} "
            f"| {net[0]:.1%} / {net[1]:.1%} "
            f"| {figures.reserved_part:.2f} of largest so far "
            f"| {figures.retried / trials:.1f} (largest so far: {figures.retried_before / trials:.1f}) |"
        )
    return "\n".join(lines)


def main(families: Sequence[str] = ()) -> None:
    print(table({family: evaluate(family) for family in families or FAMILIES}))


if __name__ == "__main__":
    main(sys.argv[1:])
