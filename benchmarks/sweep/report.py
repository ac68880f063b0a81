"""The table of all ways, the pool's goals, and why a pool took so long. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.rows import Row
from benchmarks.sweep.summary import Attempt
from vrampool.units import GIB

#: The pool may take so much longer than the oracle, and on large trials alone than one after another.
NEAR, NO_SLOWER = 1.15, 1.03
_COLUMNS = (
    ("way", "way"),
    ("makespan, s", "makespan_s"),
    ("of it, only beyond the card, s", "beyond_alone_s"),
    ("of it, nothing ran, s", "idle_s"),
    ("finished", "finished"),
    ("lost though they fit", "lost_fit"),
    ("lost beyond the card", "lost_beyond"),
    ("unfinished", "unfinished"),
    ("out of memory", "ooms"),
    ("victims", "victims"),
    ("retries", "retries"),
    ("crashes", "crashes"),
    ("at once, mean", "mean_concurrent"),
    ("slowdown", "slowdown"),
    ("SM", "sm_util"),
    ("memory mean / most, GiB", ("memory_mean_gib", "memory_max_gib")),
    ("start-up, s", ("startup_s", "warm_s")),
    ("left behind", "left_behind"),
)
Ways = Mapping[str, Mapping[str, Any]]


def markdown(rows: Sequence[Mapping[str, Any]], title: str, judged: Sequence[Row]) -> str:
    """Return the table, and the goals, and what is known of each pool, in Markdown."""
    lines = [f"## {title}", "", "| " + " | ".join(head for head, _ in _COLUMNS) + " |", "|---" * len(_COLUMNS) + "|"]
    for row in rows:
        if "makespan_s" not in row:
            why = row.get("error") or row.get("skipped") or "nothing was told"
            lines.append(f"| {row['way']} | {str(why).replace('|', '/')[:300]} |")
            continue
        lines.append("| " + " | ".join(_cell(row, key) for _, key in _COLUMNS) + " |")
    lines += ["", *_goal_lines(judged)]
    for row in rows:
        if "breakdown" in row:
            lines += ["", f"### {row['way']}", "", *_breakdown_lines(row)]
    return "\n".join(lines) + "\n"


def _cell(row: Mapping[str, Any], key: str | tuple[str, str]) -> str:
    if isinstance(key, tuple):
        return " / ".join(_cell(row, each) for each in key if row.get(each) is not None)
    value = row.get(key)
    if isinstance(value, list):
        return str(len(value))
    return "" if value is None else str(value)


def timeline(attempts: Sequence[Attempt]) -> str:
    """Return a table of attempts by their start: when, what each needs, asked for, got and held, and how it ended."""
    heads: tuple[str, ...] = ("trial", "start", "end", "took", "alone", "needs, GiB", "asked", "lease", "held", "ended")
    heads += ("verdict", "attempt", "spawn, s", "why it asked for that")
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for item in sorted(attempts, key=lambda item: item.start_s):
        facts = item.facts
        asked = facts.get("request_bytes")
        cells = [
            f"{item.id} {facts.get('model', '')}",
            f"{item.start_s:.1f}",
            f"{item.end_s:.1f}",
            f"{item.end_s - item.start_s:.1f}",
            f"{facts.get('alone_s') or 0:.1f}",
            f"{facts.get('need_gib') or 0:.1f}",
            "all" if "request_bytes" in facts and asked is None else _gib(asked),
            _gib(facts.get("lease_bytes")),
            _gib(facts.get("peak_bytes")),
            item.end,
            item.verdict or "",
            str(item.attempt),
            str(facts.get("spawn_s") or ""),
            str(facts.get("request_reason") or item.text or "").replace("|", "/"),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _gib(size: int | None) -> str:
    return "" if size is None else f"{size / GIB:.1f}"


def _goal_lines(rows: Sequence[Row]) -> list[str]:
    words = {True: "kept", False: "missed", None: ""}
    lines = [f"| {row.what} | {row.measured} | {row.goal} | {words[row.kept]} |" for row in rows]
    return ["| goal | measured | wanted | |", "|---|---|---|---|", *lines] if lines else []


def _breakdown_lines(row: Mapping[str, Any]) -> list[str]:
    found = dict(row["breakdown"])
    reasons = found.pop("first_in_line_s", {})
    lines = [f"- submission: {row['state']}"] if row.get("state") else []
    lines += [f"- {name}: {value}" for name, value in found.items() if value is not None]
    lines += ["- what the first in line waited for:"] if reasons else []
    return lines + [f"    - {seconds} s: {reason}" for reason, seconds in reasons.items()]


def goals(ways: Ways, *, large: bool = False, timed: bool = True) -> list[Row]:
    """Return the pool's goals that can be judged by what was run.

    Args:
        ways: Their rows by name.
        large: Only large trials were run, which gain nothing from each other's company.
        timed: Their times mean something.
    """
    done = {name: row for name, row in ways.items() if "makespan_s" in row}
    pools = {name: row for name, row in done.items() if name.startswith("pool")}
    rows = []
    for name, row in pools.items():
        if timed and not large:
            rows += _against_oracle(name, row, done) + _against_fixed(name, row, done)
        elif timed and "one" in done:
            rows.append(_at_most(f"{name}, beside one after another", row, done["one"], NO_SLOWER))
        rows.append(Row(f"{name}: victims", str(row["victims"]), "0", row["victims"] == 0))
        lost = row["lost_fit"] + row["unfinished"]
        rows.append(Row(f"{name}: lost or unfinished though they fit", str(lost), "0", lost == 0))
    return rows


def _against_oracle(name: str, row: Mapping[str, Any], done: Ways) -> list[Row]:
    oracle = "oracle-mps" if "-mps" in name else "oracle"
    return [_at_most(f"{name}, beside the {oracle}", row, done[oracle], NEAR)] if oracle in done else []


def _against_fixed(name: str, row: Mapping[str, Any], done: Ways) -> list[Row]:
    """Judge it by the best fixed number at once that harmed and lost no trial."""
    harmless = [
        key
        for key, other in done.items()
        if key.startswith("fixed") and not (other["victims"] or other["lost_fit"] or other["unfinished"])
    ]
    if not harmless:
        return []
    best = min(harmless, key=lambda key: float(done[key]["makespan_s"]))
    return [_at_most(f"{name}, beside {best}, the best number without a victim", row, done[best], 1.0)]


def _at_most(what: str, row: Mapping[str, Any], other: Mapping[str, Any], factor: float) -> Row:
    mine, theirs = float(row["makespan_s"]), float(other["makespan_s"])
    share = mine / theirs if theirs else float("inf")
    complete = not row["unfinished"] and not other["unfinished"]  # a way that was cut off would seem quick
    wanted = f"<= {factor:.2f}x of {theirs:g} s"
    without = f", {mine - float(row['beyond_alone_s']):.1f} s without those beyond the card alone"
    return Row(
        what,
        f"{mine:g} s, {share:.2f}x{without if row['beyond_alone_s'] else ''}",
        wanted,
        complete and share <= factor,
    )
