"""Runs a probe in a pool: dry trials that show the search space, then its worst corners, each alone on a device."""

from __future__ import annotations

import sys
import time
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from optuna.distributions import CategoricalDistribution
from optuna.samplers import RandomSampler
from optuna.trial import FrozenTrial, TrialState

from vrampool.errors import InputError, ObjectiveFailedError
from vrampool.handle import Handle
from vrampool.measured import planned_params
from vrampool.messages import AttemptFacts, EndKind
from vrampool.probing.corners import CornerSearch, Run
from vrampool.probing.findings import Device, Findings, Found, describe, one_line
from vrampool.probing.space import Space
from vrampool.probing.stopping import PROBE_ATTR, REPORTS
from vrampool.storage import attempt_of
from vrampool.units import format_bytes

if TYPE_CHECKING:
    from vrampool.pool import Pool

#: Corner trials at most; dry ones come on top.
RUNS = 10
_DRY_RUNS = 4
#: A corner is ended after so long, whatever it shows.
CORNER_S = 120.0
#: A trial that went on after its last report, or never reported, is ended when its peak has not grown for so long.
_QUIET_S = 10.0
_QUIET_AFTER_REPORTS_S = 2.0
_STEPS = "its peak was stable"
_LATE = "it took too long"
Tell = Callable[[str], None]


def probe(
    pool: Pool,
    objective: Callable[..., Any] | str,
    *,
    runs: int = RUNS,
    reports: int = REPORTS,
    corner_s: float = CORNER_S,
    on_progress: Tell | None = None,
    **options: Any,
) -> Findings:
    """Find what an objective needs at most, before a study of it is run.

    The trials are of a study of the probe's own. Later studies with the same objective learn from their peaks.

    Args:
        pool: Where it runs; each trial has a whole device.
        objective: As `Pool.submit` takes it.
        runs: Trials at corners, at most.
        reports: A trial ends after so many reports; more where the objective reports several times before it evaluates.
        corner_s: A trial ends after so many seconds.
        on_progress: Given one line of text for each trial that begins or has ended.
        options: Of `Pool.submit`: direction, directions, env, workdir.

    Raises:
        InputError: something asked for cannot be done.
        ObjectiveFailedError: the objective fails before its parameters are known.
    """
    for name, value, least in (("runs", runs, 2), ("reports", reports, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"{name} must be a whole number, at least {least}, not {value!r}")
    if not isinstance(corner_s, (int, float)) or corner_s <= 0:
        raise InputError(f"the time of a corner must be a number of seconds above 0, not {corner_s!r}")
    pool.check(objective, **options)
    return _Probe(pool, objective, runs, reports, corner_s, on_progress or (lambda line: None), options).run()


def tell(line: str) -> None:
    """Show a line of progress."""
    print(line, file=sys.stderr, flush=True)


def probe_first(pool: Pool, objective: Callable[..., Any] | str, **options: Any) -> Findings:
    """Run a probe before a submission, and warn of what does not fit. Takes and raises what `probe` does."""
    findings = probe(pool, objective, on_progress=tell if sys.stderr.isatty() else None, **options)
    if not findings.fits:
        warnings.warn(one_line(findings), stacklevel=3)
    return findings


class _Probe:
    def __init__(
        self,
        pool: Pool,
        objective: Callable[..., Any] | str,
        runs: int,
        reports: int,
        corner_s: float,
        tell: Tell,
        options: Mapping[str, Any],
    ) -> None:
        named = objective if isinstance(objective, str) else getattr(objective, "__qualname__", "objective")
        self._pool, self._objective, self._options = pool, objective, options
        self._runs, self._reports, self._corner_s, self._tell = runs, reports, corner_s, tell
        short = named.rpartition(":")[2].rpartition(".")[2].strip("<>") or "objective"
        self._found = Found(f"probe-{short}-{uuid.uuid4().hex[:6]}", named)
        self._space = Space()
        self._marked = False

    def run(self) -> Findings:
        started = time.monotonic()
        self._look_around()
        if self._space.distributions:
            search = CornerSearch(self._space, self._corner, self._runs)
            self._found.corners = search.search()
        return self._found.conclude(self._devices(), time.monotonic() - started)

    # ---- dry trials --------------------------------------------------------------------------------

    def _look_around(self) -> None:
        """Find the parameters: one random trial, then one for each word that may open a branch not seen yet."""
        run = self._try({}, "drawn at random", dry=True)
        if run.end == "failed" and not self._space.distributions:
            raise ObjectiveFailedError(f"the objective fails before it suggests anything: {run.note}")
        tried = [run.params]
        while len(tried) < _DRY_RUNS:
            branch = self._unseen(tried)
            if branch is None:
                return
            run = self._try(branch, f"drawn at random, {describe(branch)}", dry=True)
            tried.append({**branch, **run.params})

    def _unseen(self, tried: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
        for name, kind in self._space.distributions.items():
            if not isinstance(kind, CategoricalDistribution) or self._space.is_ordered(name):
                continue
            seen = [params[name] for params in tried if name in params]
            for choice in kind.choices:
                if choice not in seen:
                    return {name: choice}
        return None

    # ---- one trial ---------------------------------------------------------------------------------

    def _corner(self, params: Mapping[str, Any], corner: str) -> Run:
        return self._try(params, corner, dry=False)

    def _try(self, params: Mapping[str, Any], corner: str, *, dry: bool) -> Run:
        count = len(self._found.dry) + 1 if dry else 0
        self._tell(f"{'dry trial ' + str(count) if dry else 'corner'}: {corner}")
        handle = self._pool.submit(
            self._objective,
            1,
            study_name=self._found.study,
            vram=(self._whole_bytes(), None),
            sampler=RandomSampler(),
            pruner=f"vrampool.probing.stopping:{'AfterFirstReport' if dry else 'AfterReports'}",
            # In case nobody is left who ends it.
            trial_timeout_s=2 * self._corner_s + 60,
            max_concurrent_trials=1,
            points=[params] if params else (),
            **self._options,
        )
        if not self._marked:
            handle.study.set_user_attr(PROBE_ATTR, {"reports": self._reports, "objective": self._found.objective})
            self._marked = True
        try:
            reason = self._follow(handle)
        except BaseException:
            handle.cancel("the probe was interrupted")
            raise
        trial = max(handle.trials, key=lambda one: one.number, default=None)
        if trial is None:
            run = Run(-1, corner, dict(params), "failed", None, note=handle.reason or "it was not started")
        else:
            self._space.see(trial.distributions)
            run = _run_of(trial, corner, reason)
        if dry:
            self._found.dry.append(run)
        peak = "" if run.peak_bytes is None else f", {format_bytes(run.peak_bytes)}"
        self._tell(f"  {run.end}{peak}" + (f": {run.note}" if run.end == "failed" else ""))
        return run

    def _follow(self, handle: Handle) -> str:
        """Wait for a trial's end, or end it when it has shown enough; return why it was ended."""
        reason, peak_bytes = "", 0
        grown_at: float | None = None
        for progress in handle.watch():
            if progress.final:
                break
            now = time.monotonic()
            live = next((one for one in handle.trials if one.state == TrialState.RUNNING), None)
            if reason or live is None or live.datetime_start is None:
                continue
            held = self._held(handle, live.number)
            if grown_at is None:
                began_at = grown_at = now
            if held is not None and held[0] > peak_bytes * 1.01:
                peak_bytes, grown_at = held[0], now
            around = held is not None and held[1]
            quiet_s = _QUIET_AFTER_REPORTS_S if len(live.intermediate_values) >= self._reports else _QUIET_S
            if around and now - grown_at >= quiet_s:
                reason = _STEPS
            elif now - began_at >= self._corner_s:
                reason = _LATE
            if reason:
                handle.cancel(f"the probe has seen enough: {reason}")
        return reason

    def _held(self, handle: Handle, number: int) -> tuple[int, bool] | None:
        """Return what a running trial holds or held at most, and whether it has been through a round."""
        for worker in handle.workers():
            for running in worker.running:
                if (running.study, running.number) == (handle.study_name, number):
                    return max(running.peak_bytes or 0, running.measured_bytes or 0), running.peak_bytes is not None
        return None

    def _whole_bytes(self) -> int | None:
        """Return a request that only a whole device satisfies; None: no device is known yet.

        A bound and not a size: it makes the trial exclusive, which also runs where strangers hold a part of the device.
        """
        budgets = [worker.budget_bytes for worker in self._pool.devices()]
        if self._pool.local is not None:
            budgets.append(self._pool.local.record.largest_budget_bytes)
        return max(budgets, default=0) or None

    def _devices(self) -> list[Device]:
        return [
            Device(worker.device_name, worker.device_kind, worker.grantable_bytes or worker.budget_bytes, worker.slots)
            for worker in self._pool.devices()
        ]


def _run_of(trial: FrozenTrial, corner: str, reason: str) -> Run:
    """Return what a trial's attempt showed."""
    facts = attempt_of(trial) or AttemptFacts(end="")
    peak_bytes, note = facts.peak_bytes, reason
    if facts.end in (EndKind.COMPLETE, EndKind.PRUNED):
        end = "not whole" if facts.num_alloc_retries else "fits"
    elif facts.end in (EndKind.OOM, EndKind.INFEASIBLE):
        end = "does not fit"
        peak_bytes = (peak_bytes or 0) + (facts.asked_bytes or 0) or None
    elif reason == _STEPS and peak_bytes:
        # Stable after its reports it is as good as whole; without a report nobody knows what an evaluation takes.
        end = "fits" if trial.intermediate_values else "not whole"
    elif facts.end in (EndKind.CANCELLED, EndKind.TIMEOUT) and peak_bytes:
        end, note = "not whole", reason or _LATE
    else:
        end, note = "failed", facts.text or facts.end or "nothing is known of its end"
    params = trial.params if end == "fits" else planned_params(trial)
    return Run(
        trial.number,
        corner,
        dict(params),
        end,
        peak_bytes,
        overhead_bytes=facts.overhead_bytes,
        device=facts.device_name or facts.device,
        note=note,
        run_s=facts.run_s,
        reports=len(trial.intermediate_values),
        steps=facts.steps,
    )
