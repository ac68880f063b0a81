"""A line for each study of a pool: what all its submissions together have come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from vrampool.cli.output import best_text
from vrampool.handle import Handle


def by_study(handles: Iterable[Handle]) -> list[list[Handle]]:
    """Gather submissions by their study; the study that was asked for last comes last."""
    found: dict[str, list[Handle]] = {}
    for handle in handles:
        found[handle.study_name] = [*found.pop(handle.study_name, []), handle]
    return list(found.values())


def study_line(handles: Sequence[Handle]) -> str:
    """Say where a study is.

    Args:
        handles: Its submissions, oldest first, at least one.
    """
    parts = [handle.progress() for handle in handles]
    open_ones = [part for part in parts if not part.final]
    finished, running = sum(part.finished for part in parts), sum(part.running for part in parts)
    missing = [None if part.wanted is None else max(0, part.wanted - part.finished) for part in open_ones]
    known = [count for count in missing if count is not None]
    wanted = f"/{finished + sum(known)}" if open_ones and len(known) == len(missing) else ""
    state = open_ones[-1].state if open_ones else parts[-1].state
    words = [f"{handles[0].study_name}: {state}", f"{finished}{wanted} finished"]
    if running or open_ones:
        words.append(f"{running} running")
    counts = Counter[str]()
    for part in parts:
        counts.update(part.counts)
    told = [f"{count} {name.lower()}" for name, count in sorted(counts.items())]
    if len(handles) > 1:
        told.append(f"{len(handles)} submissions")
    return ", ".join(words) + (f" ({', '.join(told)})" if told else "") + best_text(handles[-1])
