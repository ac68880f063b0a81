"""The one objective that every way of running trials gets. Standard library only, and it knows none of them.

What it does is told by two variables, so that it is the same in whatever process a way calls it: `PEERS_CASE`, and
`PEERS_RUN`, the folder of the run. There it leaves a line for each start and end; the lines are what is measured.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

#: What the trials of the case `memory` leave behind: nothing drops it while their process lives.
KEPT: list[bytearray] = []
KEPT_MIB = 200
WORK_S = 0.5
#: This one among those that start is the victim of the cases in which something goes wrong.
VICTIM = 3


class Drawn:
    """A trial whose parameters were drawn elsewhere, for ways that have no Optuna trial where the objective runs."""

    def __init__(self, params: dict[str, Any], number: object = None) -> None:
        self.params, self.number = params, number

    def suggest_float(self, name: str, low: float, high: float) -> float:
        return float(self.params[name])

    def suggest_int(self, name: str, low: int, high: int) -> int:
        return int(self.params[name])

    def suggest_categorical(self, name: str, choices: Any) -> Any:
        return self.params[name]


def objective(trial: Any) -> float:
    """Suggest three parameters, do what the case says, return a value."""
    folder, case = Path(os.environ["PEERS_RUN"]), os.environ["PEERS_CASE"]
    at = time.time()
    place = _count(folder / "starts")
    note(folder, "start", at=at, place=place, pid=os.getpid(), born=_born(), trial=str(trial.number))
    x = trial.suggest_float("x", -10.0, 10.0)
    n = trial.suggest_int("n", 1, 8)
    kind = trial.suggest_categorical("kind", ["a", "b", "c"])
    _CASES[case](place == VICTIM)
    note(folder, "end", place=place)
    return (x - 2.0) ** 2 + n + (kind != "b")


def note(folder: Path, what: str, **fields: Any) -> None:
    """Write one line about what happens now. Lines of several processes do not mix."""
    line = json.dumps({"what": what, "at": time.time()} | fields) + "\n"
    descriptor = os.open(folder / "events.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def _count(path: Path) -> int:
    """Return how many have called this with the path, over all processes and threads."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        number = int(os.read(descriptor, 20) or b"0") + 1
        os.pwrite(descriptor, str(number).encode(), 0)
        return number
    finally:
        os.close(descriptor)


def _born() -> int:
    """Return when this process started, in clock ticks: pids come again, pairs of both do not."""
    return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])


# ---- the cases -----------------------------------------------------------------------------------------


def _noop(victim: bool) -> None:
    pass


def _torch(victim: bool) -> None:
    import torch

    torch.set_num_threads(1)
    matrix = torch.ones(64, 64)
    end_s = time.thread_time() + WORK_S
    while time.thread_time() < end_s:
        matrix = (matrix @ matrix).clamp(0, 1)


def _memory(victim: bool) -> None:
    KEPT.append(bytearray(b"\x01") * (KEPT_MIB * 1024**2))  # filled: what nobody has touched is no memory yet
    time.sleep(0.2)


def _killed(victim: bool) -> None:
    time.sleep(0.2)
    if victim:  # a second try starts later than third, so it goes well
        os.kill(os.getpid(), signal.SIGKILL)


def _hanging(victim: bool) -> None:
    while victim:
        time.sleep(3600)
    time.sleep(0.1)


def _stubborn(victim: bool) -> None:
    if victim:
        asked = {signal.SIGALRM, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}
        signal.pthread_sigmask(signal.SIG_BLOCK, asked)
    while victim:
        try:
            time.sleep(3600)
        except BaseException:  # whatever is raised into it
            print("not now", file=sys.stderr)
    time.sleep(0.1)


_CASES = {
    "noop": _noop,
    "torch": _torch,
    "memory": _memory,
    "killed": _killed,
    "hanging": _hanging,
    "stubborn": _stubborn,
}
