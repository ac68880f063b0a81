"""A study of many short trials while processes of its pool are killed at random, from a seed.

The seed fixes what happens to whom and after how many trials; a failure prints it, and it can be run again.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from optuna.trial import FrozenTrial, TrialState
from recovery.hardy import OBJECTIVES, HardyPool
from recovery.invariants import faults_of
from recovery.processes import LIMIT_S, below, frozen, kill
from support.waiting import until

import vrampool
from vrampool.queueing.names import Names
from vrampool.storage import mark_of

SUBMITTER = Path(__file__).with_name("submitter.py")
KINDS = (
    "child",
    "keeper",
    "worker",
    "supervisor",
    "coordinator",
    "valkey",
    "watcher",
    "host",
    "submitter",
    "freeze",
    "redeliver",
)


@dataclass(frozen=True)
class Fault:
    """What happens, and when."""

    after: int  #: trials that have begun before
    kind: str  #: one of KINDS
    pause_s: float  #: a little later than that


def draw(seed: int, n_faults: int, n_trials: int, kinds: Sequence[str] = KINDS) -> list[Fault]:
    """Draw a schedule, in the order of its times."""
    dice = random.Random(seed)
    faults = [
        Fault(dice.randrange(1, n_trials), dice.choice(list(kinds)), dice.uniform(0.0, 0.15)) for _ in range(n_faults)
    ]
    return sorted(faults, key=lambda fault: (fault.after, fault.pause_s))


@dataclass
class Chaos:
    """One run.

    Args:
        pool: Its pool, with nothing else to do.
        n_trials: Root trials.
        faults: What happens meanwhile.
        seed: Of the study, and of the choice among processes of one kind.
        limit_s: For the whole study.
    """

    pool: HardyPool
    n_trials: int
    faults: Sequence[Fault]
    seed: int = 0
    limit_s: float = 90.0
    step_s: float = 0.02
    done: list[str] = field(default_factory=list)

    def run(self) -> list[str]:
        """Run the study to its end; return every broken invariant, none when all is well."""
        self._dice = random.Random(self.seed)
        self._name = f"chaos-{uuid.uuid4().hex[:6]}"
        self._began_s = time.monotonic()
        self._script = self._submit()
        handle = self._handle()
        try:
            for fault in self.faults:
                self._await(fault, handle)
                getattr(self, f"_{fault.kind}")()
                self.done.append(f"{time.monotonic() - self._began_s:.1f} s: {fault.kind} after {fault.after} trials")
            trials = self.pool.await_end(handle, limit_s=self.limit_s)
        finally:
            self._script.kill()
            self._script.wait()
        found = faults_of(trials, handle.spec, self.pool.log)
        if self.pool.state(handle) != "done":
            found.append(f"the submission is {self.pool.state(handle)}")
        return found

    def __str__(self) -> str:
        return f"seed {self.seed}, {self.n_trials} trials: " + "; ".join(self.done)

    # ---- the study -----------------------------------------------------------------------------------

    def _submit(self) -> subprocess.Popen[bytes]:
        """Start a process that submits the study and waits for its end, as a script of a user's does."""
        arguments = [str(self.pool.state_dir), f"{OBJECTIVES}:search", self._name, str(self.n_trials), str(self.seed)]
        env = {"EXECUTION_LOG": str(self.pool.log.path), "STEP_S": str(self.step_s)}
        with (self.pool.folder / "submitter.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, str(SUBMITTER), *arguments], env={**os.environ, **env}, stdout=log, stderr=log
            )

    def _handle(self) -> vrampool.Handle:
        def submitted() -> bool:
            return any(row.study_name == self._name for row in self.pool.catalog.submissions())

        until(submitted, what="a submission", timeout_s=LIMIT_S)
        return self.pool.pool.attach(self._name)

    def _await(self, fault: Fault, handle: vrampool.Handle) -> None:
        def due() -> bool:
            return self.pool.log.started >= fault.after or self.pool.state(handle) == "done"

        until(due, what=f"{fault.after} trials", timeout_s=self.limit_s)
        at_s = time.monotonic() + fault.pause_s
        until(lambda: time.monotonic() >= at_s)

    def _running(self) -> list[FrozenTrial]:
        study_id = self.pool.storage.get_study_id_from_name(self._name)
        return list(self.pool.storage.get_all_trials(study_id, deepcopy=False, states=(TrialState.RUNNING,)))

    # ---- what happens --------------------------------------------------------------------------------

    def _child(self) -> None:
        """A trial's own process, or a spare's."""
        kill(self._pick([process for keeper in self.pool.processes.keepers() for process in below(keeper)]))

    def _keeper(self) -> None:
        kill(self._pick(self.pool.processes.keepers()))

    def _worker(self) -> None:
        self.pool.processes.kill("worker")

    def _supervisor(self) -> None:
        self.pool.processes.kill("supervisor")

    def _coordinator(self) -> None:
        self.pool.processes.kill("coordinator")

    def _valkey(self) -> None:
        self.pool.processes.kill("valkey")

    def _watcher(self) -> None:
        self.pool.processes.kill("watcher")

    def _host(self) -> None:
        """The host dies, and its user brings the pool up again at once."""
        self.pool.processes.note_all()
        self.pool.processes.kill("host")
        self.pool.up()

    def _submitter(self) -> None:
        """The script that waits for the study: nobody starts it again."""
        self._script.kill()
        self._script.wait()

    def _freeze(self) -> None:
        """The worker stands still until its leases have run out and its trials are given to others."""
        with frozen(self.pool.processes.worker()):
            held = [trial._trial_id for trial in self._running()]
            thaw_s = time.monotonic() + 4 * float(self.pool.pool.settings.lease_ttl_s)

            def lost() -> bool:
                finished = [self.pool.storage.get_trial(trial_id).state.is_finished() for trial_id in held]
                return (bool(held) and all(finished)) or time.monotonic() > thaw_s

            until(lost, what="a loss of its trials", timeout_s=LIMIT_S)

    def _redeliver(self) -> None:
        """A job is handed out a second time, as happens when its worker's lease ran out and the worker lives."""
        trial = self._pick(self._running())
        mark = None if trial is None else mark_of(trial)
        if trial is not None and mark is not None:
            job_id = f"{mark.submission}-{trial.number}"
            names = Names(self.pool.pool.settings.pool)
            with self.pool.pool.connection.pipeline() as pipeline:
                pipeline.delete(names.live(job_id))
                pipeline.lpush(names.waiting, job_id)
                pipeline.execute()
            self.pool.pool._open().events.poke()

    def _pick(self, among: Sequence[object]):  # type: ignore[no-untyped-def]
        return self._dice.choice(list(among)) if among else None
