"""Runs a probe in a pool: dry trials that show the search space, then its worst corners, each alone on a device."""

from __future__ import annotations

import time
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from optuna.distributions import CategoricalDistribution
from optuna.samplers import RandomSampler
from optuna.trial import TrialState

from vrampool.errors import InputError, ObjectiveFailedError
from vrampool.handle import Handle
from vrampool.probing.corners import CornerSearch, Run
from vrampool.probing.findings import Device, Findings, Found, describe, one_line
from vrampool.probing.outcome import LATE, STEADY, run_of
from vrampool.probing.progress import Look, shown
from vrampool.probing.space import Space
from vrampool.probing.stopping import PROBE_ATTR, REPORTS

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
OnLook = Callable[[Look], None]


def probe(
    pool: Pool,
    objective: Callable[..., Any] | str,
    *,
    runs: int = RUNS,
    reports: int = REPORTS,
    corner_s: float = CORNER_S,
    on_look: OnLook | None = None,
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
        on_look: Given each trial when it begins, every half second while it runs, and when it has ended.
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
    return _Probe(pool, objective, runs, reports, corner_s, on_look or (lambda look: None), options).run()


def probe_first(pool: Pool, objective: Callable[..., Any] | str, **options: Any) -> Findings:
    """Run a probe before a submission, and warn of what does not fit. Takes and raises what `probe` does."""
    with shown() as on_look:
        findings = probe(pool, objective, on_look=on_look, **options)
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
        on_look: OnLook,
        options: Mapping[str, Any],
    ) -> None:
        named = objective if isinstance(objective, str) else getattr(objective, "__qualname__", "objective")
        self._pool, self._objective, self._options = pool, objective, options
        self._runs, self._reports, self._corner_s, self._on_look = runs, reports, corner_s, on_look
        short = named.rpartition(":")[2].rpartition(".")[2].strip("<>") or "objective"
        self._found = Found(f"probe-{short}-{uuid.uuid4().hex[:6]}", named)
        self._space = Space()
        self._marked = False
        self._corners = 0

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
        began_s = time.monotonic()
        if not dry:
            self._corners += 1
        name = f"dry trial {len(self._found.dry) + 1}" if dry else f"corner {self._corners} of at most {self._runs}"
        look = Look(name, corner)
        self._on_look(look)
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
            reason = self._follow(handle, look)
        except BaseException:
            handle.cancel("the probe was interrupted")
            raise
        trial = max(handle.trials, key=lambda one: one.number, default=None)
        if trial is None:
            run = Run(-1, corner, dict(params), "failed", None, note=handle.reason or "it was not started")
        else:
            self._space.see(trial.distributions)
            run = run_of(trial, corner, reason)
        if dry:
            self._found.dry.append(run)
        self._on_look(replace(look, run=run, elapsed_s=time.monotonic() - began_s))
        return run

    def _follow(self, handle: Handle, look: Look) -> str:
        """Wait for a trial's end, or end it when it has shown enough; return why it was ended."""
        reason, peak_bytes = "", 0
        asked_at = time.monotonic()
        grown_at: float | None = None
        for progress in handle.watch():
            if progress.final:
                break
            now = time.monotonic()
            live = next((one for one in handle.trials if one.state == TrialState.RUNNING), None)
            look = replace(look, elapsed_s=now - asked_at)
            if reason or live is None or live.datetime_start is None:
                self._on_look(look)
                continue
            held, device_bytes = self._held(handle, live.number)
            self._on_look(
                replace(
                    look,
                    held_bytes=max(peak_bytes, held[0]) if held is not None else None,
                    device_bytes=device_bytes,
                    reports=len(live.intermediate_values),
                )
            )
            if grown_at is None:
                began_at = grown_at = now
            if held is not None and held[0] > peak_bytes * 1.01:
                peak_bytes, grown_at = held[0], now
            around = held is not None and held[1]
            quiet_s = _QUIET_AFTER_REPORTS_S if len(live.intermediate_values) >= self._reports else _QUIET_S
            if around and now - grown_at >= quiet_s:
                reason = STEADY
            elif now - began_at >= self._corner_s:
                reason = LATE
            if reason:
                handle.cancel(f"the probe has seen enough: {reason}")
        return reason

    def _held(self, handle: Handle, number: int) -> tuple[tuple[int, bool] | None, int | None]:
        """Return what a running trial holds or held at most, and whether it has been through a round; its device's."""
        for worker in handle.workers():
            for running in worker.running:
                if (running.study, running.number) == (handle.study_name, number):
                    most_bytes = max(running.peak_bytes or 0, running.measured_bytes or 0)
                    return (most_bytes, running.peak_bytes is not None), worker.budget_bytes
        return None, None

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
