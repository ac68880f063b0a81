"""The tables: what each way costs, what it loses when something goes wrong, and the goals of the pool."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence

from rich.table import Table

from benchmarks.peers.cases import CASES
from benchmarks.peers.install import size_mb
from benchmarks.peers.running import Result
from benchmarks.peers.ways import WAYS
from benchmarks.rows import Row

FAULTS = ("killed", "hanging", "stubborn")
#: What idle processes weigh differs by so much from one look to the next.
_NOISE_MIB = 16.0

Results = Mapping[tuple[str, str], Result]  #: by way and case


def costs(results: Results) -> Table:
    """Return the table of costs. Without the runs that died: `fate` tells of those."""
    table = Table(title="what each way costs", box=None, header_style="bold")
    columns = (
        "way", "first trial after", "no-op trials/s", "CPU s each", "torch + 0.5 s: wall / ideal", "CPU s each",
        "processes / trials", "kept after", "idle", "installed",
    )  # fmt: skip
    for column in columns:
        table.add_column(column, justify="left" if column == "way" else "right")
    for name in dict.fromkeys(way for way, _ in results):
        noop, torch = results.get((name, "noop")), results.get((name, "torch"))
        idle = f"{noop.idle_mib:.0f} MiB, {noop.idle_processes}" if noop and noop.idle_mib is not None else ""
        packages, size = size_mb(WAYS[name].packages)
        table.add_row(
            name,
            f"{noop.first_s:.2f} s" if noop and noop.first_s is not None else "",
            f"{rate(noop):.1f}" if noop and noop.done_s else "",
            f"{noop.cpu_s / noop.trials:.3f}" if noop else "",
            f"{over_ideal(torch):.2f}" if torch and torch.done_s else "",
            f"{torch.cpu_s / torch.trials:.2f}" if torch else "",
            f"{torch.processes} / {torch.started}" if torch else "",
            "" if (mib := kept_mib(results, name)) is None else f"{mib:+.0f} MiB",
            idle,
            f"{size:.0f} MB, {packages}",
        )
    return table


def where(results: Results) -> Table:
    """Return the table of where the CPU time of each run went, as far as it was looked at."""
    table = Table(title="where the CPU time goes", box=None, header_style="bold")
    for column in ("way", "case", "part", "CPU s", "ms a trial"):
        table.add_column(column, justify="right" if column in ("CPU s", "ms a trial") else "left")
    for (way, case), result in results.items():
        for part, used_s in result.cpu_parts.items():
            table.add_row(way, case, part, f"{used_s:.2f}", f"{1000 * used_s / result.trials:.0f}")
    return table


def losses(results: Results) -> Table:
    """Return the table of what became of the trials when one of them went wrong."""
    table = Table(title="what is lost when the third trial goes wrong", box=None, header_style="bold")
    for column in ("way", *(f"it is {case}" if case != "killed" else "its process is killed" for case in FAULTS)):
        table.add_column(column)
    for name in dict.fromkeys(way for way, _ in results):
        table.add_row(name, *(fate(found) if (found := results.get((name, case))) else "" for case in FAULTS))
    return table


def fate(result: Result) -> str:
    """Say what became of the trials of a run."""
    told = result.states or {}
    parts = [f"{result.complete} of {result.trials} complete"]
    if result.failed:
        parts.append(f"{result.failed} told failed")
    if running := sum(state in ("RUNNING", "WAITING") for state in told.values()):
        parts.append(f"{running} left RUNNING")
    never = result.trials - len(told) if result.states is not None else max(0, result.trials - result.started)
    if never > 0:
        parts.append(f"{never} never run")
    if result.started > result.trials:
        parts.append("tried again")
    if result.states is None and result.kept_in == "memory":
        parts.append("results lost with the process")
    if result.code is None:
        parts.append(f"the run hangs ({CASES[result.case].quiet_s or CASES[result.case].most_s:g} s waited)")
    elif result.code < 0:
        parts.append(f"the run dies ({signal.Signals(-result.code).name})")
    elif result.code:
        parts.append(f"the run fails: {result.error}")
    elif result.done_s is not None:
        parts.append(f"{result.done_s:.1f} s")
    return ", ".join(parts)


def rate(result: Result) -> float:
    """Return trials a second from the first trial to the last result."""
    assert result.done_s is not None and result.first_s is not None
    return result.trials / (result.done_s - result.first_s)


def over_ideal(result: Result) -> float:
    """Return the time from the driver's start to the last result, over what the work alone takes."""
    assert result.done_s is not None
    return result.done_s / CASES[result.case].ideal_s(result.trials)


def kept_mib(results: Results, way: str) -> float | None:
    """Return by how much more a way holds after trials that left memory behind than after ones that did nothing."""
    memory, noop = results.get((way, "memory")), results.get((way, "noop"))
    if memory is None or noop is None or memory.idle_mib is None or noop.idle_mib is None:
        return None
    return memory.idle_mib - noop.idle_mib


def goals(results: Results) -> list[Row]:
    """Return the pool's goals, as far as this run says something about them."""
    rows = []
    for way, most in (("pool", 4.5), ("pool forkserver", 1.6)):
        torch = results.get((way, "torch"))
        if torch is not None and torch.done_s:
            found = over_ideal(torch)
            rows.append(Row(f"{way}: torch + 0.5 s, wall over the ideal", f"{found:.2f}", f"{most:g}", found <= most))
    noop = results.get(("pool", "noop"))
    if noop is not None and noop.first_s is not None:
        rows.append(Row("pool: start to first trial", f"{noop.first_s:.2f} s", "1.5 s", noop.first_s <= 1.5))
    mib = kept_mib(results, "pool")
    if mib is not None:
        kept = Row("pool: kept of 200 MiB a trial", f"{mib:+.0f} MiB", "0 MiB", mib <= _NOISE_MIB)
        rows.append(kept)
    for case in FAULTS:
        found_run = results.get(("pool", case))
        if found_run is not None:
            failed = 0 if case == "killed" else 1  # killed: tried again; out of time: told failed, as documented
            good = (found_run.lost, found_run.failed, found_run.code) == (0, failed, 0)
            wanted = "all complete" if case == "killed" else "1 told failed"
            rows.append(
                Row(f"pool: one trial {case}", f"{found_run.lost} lost, {found_run.failed} failed", wanted, good)
            )
    return rows


def noise(results: Sequence[Result]) -> str:
    """Say how much of the machine others had, over all runs."""
    shares = sorted(result.others_share for result in results)
    if not shares:
        return ""
    return f"others had {shares[len(shares) // 2]:.0%} of the CPU time in the middle run, {shares[-1]:.0%} in the worst"
