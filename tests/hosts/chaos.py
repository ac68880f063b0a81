"""Studies on several hosts while everything that can fail fails, in an order drawn from a seed.

Three studies are under way at any time. When one is over, each of its trials is looked at, and the next one begins.
Nothing waits for the pool to recover from one fault before the next: only what must be started again is.
"""

from __future__ import annotations

import random
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psutil
from hosts.faults import KINDS, WEIGHTS, Faults
from hosts.host import end
from hosts.many import ManyHosts
from hosts.time_passes import last
from optuna.trial import FrozenTrial, TrialState
from recovery.execution_log import ExecutionLog
from recovery.invariants import faults_of
from support.waiting import until

STUDIES = 3
#: Without any trial that ends for so long, nothing moves any more.
STUCK_S = 120.0


@dataclass(frozen=True)
class Fault:
    """What happens, and how long after the one before."""

    kind: str
    pause_s: float


def draw(seed: int, n_faults: int, kinds: Sequence[str]) -> list[Fault]:
    """Draw a schedule in which every kind comes at least once, if there are as many faults as kinds."""
    dice = random.Random(seed)
    chosen = list(kinds)[:n_faults]
    weights = [WEIGHTS.get(kind, 1.0) for kind in kinds]
    chosen += dice.choices(list(kinds), weights, k=n_faults - len(chosen))
    dice.shuffle(chosen)
    return [Fault(kind, dice.uniform(0.0, 1.2)) for kind in chosen]


@dataclass
class Tally:
    """What came of it."""

    injected: Counter[str] = field(default_factory=Counter)
    studies: int = 0
    trials: int = 0  #: attempts, retries among them
    roots: int = 0
    lost: list[str] = field(default_factory=list)  #: asked for, and without a result
    doubled: list[str] = field(default_factory=list)  #: run, retried or counted more than once
    broken: list[str] = field(default_factory=list)  #: other invariants
    took_s: float = 0.0

    @property
    def clean(self) -> bool:
        return not (self.lost or self.doubled or self.broken)


@dataclass
class _Study:
    name: str
    script: psutil.Popen
    log: ExecutionLog

    def fault_of_script(self) -> str | None:
        """Return what is wrong with how the script ended that waited for the study, or None."""
        if not self.log.path.with_name(self.log.path.name + ".submitted").exists():
            return None  # it died before it had its handle
        try:
            code = self.script.wait(20)
        except psutil.TimeoutExpired:
            return "its script waits although it is over"
        return None if code in (0, -signal.SIGKILL) else f"its script ended with {code}"


class Chaos:
    """One run.

    Args:
        pool: Hosts on which workers and coordinators run.
        faults: What happens.
        seed: Of the choice of host and process, and of the studies.
        n_trials: Of each study.
        studies: Under way at once.
        step_s: A trial has four such steps.
        say: Called with a line for each thing that happens.
    """

    def __init__(
        self,
        pool: ManyHosts,
        faults: Sequence[Fault],
        *,
        seed: int,
        n_trials: int = 25,
        studies: int = STUDIES,
        step_s: float = 0.1,
        say: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self.pool = pool
        self.tally = Tally()
        self._faults = faults
        self._dice = random.Random(seed)
        self._what_fails = Faults(
            pool,
            self._dice,
            running=self._running,
            scripts=lambda: [study.script for study in self._under_way],
        )
        self._n_trials = n_trials
        self._n_studies = studies
        self._step_s = step_s
        self._say = say
        self._under_way: list[_Study] = []
        self._began_s = 0.0

    def run(self) -> Tally:
        """Let everything happen, then wait for the end of every study."""
        self._began_s = time.monotonic()
        try:
            self._tend(more=True)
            for number, fault in enumerate(self._faults, 1):
                last(fault.pause_s)
                self._say(f"{number}/{len(self._faults)} {self._elapsed()}: {KINDS[fault.kind]}")
                # It may meet nobody: a process that it is about was killed a moment ago.
                until(lambda kind=fault.kind: self._happens(kind), what=f"somebody for {fault.kind}", timeout_s=60)  # type: ignore[misc]
                self.tally.injected[fault.kind] += 1
                self._tend(more=True)
            self._say(f"{self._elapsed()}: nothing more happens; {len(self._under_way)} studies run to their end")
            self._await_ends()
            for study in self._under_way:
                self.tally.lost.append(f"{study.name} did not end: {self._state_of(study)}")
        finally:
            for study in self._under_way:
                end(study.script)
        self.tally.took_s = time.monotonic() - self._began_s
        return self.tally

    def _await_ends(self) -> None:
        """Wait as long as anything ends: how fast the machine is says nothing about the pool."""
        seen, deadline_s = -1, 0.0
        while self._under_way:
            self._tend(more=False)
            ended = self.tally.roots + sum(study.log.ended for study in self._under_way)
            if ended != seen:
                seen, deadline_s = ended, time.monotonic() + STUCK_S
            elif time.monotonic() > deadline_s:
                return
            last(0.2)

    def _happens(self, kind: str) -> bool:
        if self._what_fails.happen(kind):
            return True
        self._tend(more=True)
        return False

    def _elapsed(self) -> str:
        return f"{time.monotonic() - self._began_s:6.1f} s"

    # ---- studies -------------------------------------------------------------------------------------

    def _tend(self, *, more: bool) -> None:
        """Judge the studies that are over; begin others in their place. Start again what ended, as systemd does."""
        for host in self.pool.hosts.values():
            for role in host.ended():
                self._say(f"{self._elapsed()}: {host.name}: {role} ended by itself and is started again")
                host.again(role)
        for study in list(self._under_way):
            if self._is_over(study):
                self._under_way.remove(study)
                self._judge(study)
        while more and len(self._under_way) < self._n_studies:
            self._under_way.append(self._begin())

    def _begin(self) -> _Study:
        """Start a process that submits a study and waits for it, as a user's script does."""
        name = f"chaos-{uuid.uuid4().hex[:6]}"
        log = ExecutionLog(self.pool.folder / f"{name}.executions")
        return _Study(
            name, self.pool.submitter(name, self._n_trials, self._dice.randrange(2**31), log, self._step_s), log
        )

    def _is_over(self, study: _Study) -> bool:
        row = next((row for row in self.pool.catalog.submissions() if row.study_name == study.name), None)
        if row is None:
            if study.script.poll() is not None:  # it died, or met a server that was away, before it had submitted
                self._under_way.remove(study)
                self._under_way.append(self._begin())
            return False
        return row.state.final

    def _state_of(self, study: _Study) -> str:
        row = next((row for row in self.pool.catalog.submissions() if row.study_name == study.name), None)
        if row is None:
            return "it was never submitted"
        study_id = self.pool.storage.get_study_id_from_name(study.name)
        trials = self.pool.storage.get_all_trials(study_id, deepcopy=False)
        return f"{row.state}, {dict(Counter(trial.state.name for trial in trials))}"

    def _judge(self, study: _Study) -> None:
        handle = self.pool.pool.attach(study.name)
        trials = self.pool.trials(handle)
        self.tally.studies += 1
        self.tally.trials += len(trials)
        self.tally.roots += handle.spec.n_trials or 0
        found = faults_of(trials, handle.spec, study.log)
        found += filter(None, [study.fault_of_script()])
        end(study.script)
        if self.pool.state(handle) != "done":
            found.append(f"the submission is {self.pool.state(handle)}: {handle.reason}")
        for line in found:
            self._sort_in(f"{study.name}: {line}")
            self._say(f"{self._elapsed()}: {study.name}: {line}")
        self._say(f"{self._elapsed()}: {study.name} is over, {len(trials)} attempts, {len(found)} invariants broken")

    def _sort_in(self, line: str) -> None:
        if " times" in line and "retried 0 times" not in line and "ended 0 times" not in line:
            self.tally.doubled.append(line)
        elif any(words in line for words in ("for ever", "counted instead", "is not over", "given up", "0 times")):
            self.tally.lost.append(line)
        else:
            self.tally.broken.append(line)

    def _running(self) -> list[FrozenTrial]:
        found = []
        for study in self._under_way:
            try:
                study_id = self.pool.storage.get_study_id_from_name(study.name)
            except KeyError:
                continue
            found += self.pool.storage.get_all_trials(study_id, deepcopy=False, states=(TrialState.RUNNING,))
        return found
