"""One way on one case, measured from outside."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.peers import tree
from benchmarks.peers.cases import AT_ONCE, TRIAL_LIMIT_S, Case
from benchmarks.peers.driving import Asked, load_study, states
from benchmarks.peers.ways import Way

ROOT = Path(__file__).parents[2]
#: After the last trial what is up is left alone for so long before it is weighed.
_REST_S = 1.0


@dataclass(frozen=True)
class Result:
    """What was seen of one run."""

    way: str
    case: str
    trials: int  #: asked for
    started: int  #: calls of the objective
    ended: int  #: of those, how many came to their end
    processes: int  #: in how many processes
    first_s: float | None  #: from the driver's start to the first line of an objective
    done_s: float | None  #: from the driver's start until it had all results; None: it never had
    cpu_s: float  #: of all processes of the run
    cpu_parts: dict[str, float]  #: CPU seconds by `tree.cpu_by_part` once all results were there; empty: not looked
    others_share: float  #: of the machine's CPU time, what others had meanwhile
    idle_mib: float | None  #: of all processes after the last trial, with everything still up
    idle_processes: int | None
    states: dict[str, str] | None  #: of trials, as the way itself or its storage says; None: nobody knows any more
    kept_in: str  #: `Way.keeps`
    code: int | None  #: the driver's; None: it was ended, for nothing happened any more
    error: str = ""  #: the last line that a failing driver said

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def complete(self) -> int:
        """Trials whose value can still be read."""
        if self.states is not None:
            return sum(state == "COMPLETE" for state in self.states.values())
        return self.ended if self.kept_in == "disk" else 0

    @property
    def failed(self) -> int:
        """Trials that were told as failed."""
        return sum(state == "FAIL" for state in (self.states or {}).values())

    @property
    def lost(self) -> int:
        """Trials that neither have a value nor were told as failed."""
        return self.trials - self.complete - self.failed


def run(way: Way, case: Case, trials: int, folder: Path, server: str) -> Result:
    """Run it in an empty folder. This process must have called `tree.adopt_orphans`."""
    limit_s = TRIAL_LIMIT_S if case.limited else None
    asked = Asked(folder, case.name, trials, AT_ONCE, limit_s, case.weighed, server)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("VRAMPOOL_", "PEERS_"))}
    env |= asked.to_environment() | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    used, busy_s, own_s = _children_s(), tree.busy_s(), time.process_time()
    began, began_s = time.time(), time.monotonic()
    with (folder / "output").open("wb") as output:
        driver = subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.peers.ways.{way.module}", *way.arguments],
            env=env,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        weighed = _watch(driver, case, folder, began_s)
    code = driver.poll()
    tree.end_all(driver.pid)
    driver.wait()
    wall_s, cpu_s = time.monotonic() - began_s, _children_s() - used
    others_s = tree.busy_s() - busy_s - cpu_s - (time.process_time() - own_s)
    events = read_events(folder)
    starts = [event for event in events if event["what"] == "start"]
    done = next((event["at"] for event in events if event["what"] == "done"), None)
    return Result(
        way=way.name,
        case=case.name,
        trials=trials,
        started=len(starts),
        ended=sum(event["what"] == "end" for event in events),
        processes=len({(event["pid"], event["born"]) for event in starts}),
        first_s=round(min(event["at"] for event in starts) - began, 3) if starts else None,
        done_s=round(done - began, 3) if done is not None else None,
        cpu_s=round(cpu_s, 2),
        cpu_parts=weighed.cpu_parts if weighed else {},
        others_share=round(max(0.0, others_s) / wall_s / (os.cpu_count() or 1), 3),
        idle_mib=round(weighed.mib, 1) if weighed else None,
        idle_processes=weighed.processes if weighed else None,
        states=_told(way, folder),
        kept_in=way.keeps,
        code=code,
        error=_last_line(folder) if code not in (0, None) else "",
    )


class _Weighed(NamedTuple):
    mib: float
    processes: int
    cpu_parts: dict[str, float]


def _watch(driver: subprocess.Popen[bytes], case: Case, folder: Path, began_s: float) -> _Weighed | None:
    """Wait for the driver's end, or until nothing happens any more. Weigh what is up once it is done."""
    weighed = None
    silent = _silence(folder)
    while driver.poll() is None:
        silent_s = silent()
        if time.monotonic() - began_s > case.most_s or (case.quiet_s is not None and silent_s > case.quiet_s):
            return weighed
        if case.weighed and weighed is None and (folder / "result.json").exists():
            parts = tree.cpu_by_part()
            time.sleep(_REST_S)
            weighed = _Weighed(*tree.weigh(), parts)
            (folder / "weighed").touch()
        time.sleep(0.02)
    return weighed


def _silence(folder: Path) -> Callable[[], float]:
    """Return a function that says for how many seconds no trial has started or ended; 0 before the first."""
    seen, since_s = 0, time.monotonic()

    def silent() -> float:
        nonlocal seen, since_s
        events = folder / "events.jsonl"
        size = events.stat().st_size if events.exists() else 0
        if size != seen or not size:
            seen, since_s = size, time.monotonic()
        return time.monotonic() - since_s

    return silent


def read_events(folder: Path) -> list[dict[str, Any]]:
    """Return what the trials of a run have noted."""
    path = folder / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _told(way: Way, folder: Path) -> dict[str, str] | None:
    """Return the trials' states as the driver told them, else as its storage has them."""
    result = folder / "result.json"
    if result.exists():
        found: dict[str, str] = json.loads(result.read_text())["states"]
        return found
    if way.keeps == "journal" and (folder / "journal.log").exists():
        return states(load_study(folder))
    return None


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _last_line(folder: Path) -> str:
    lines = (folder / "output").read_text(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else ""
