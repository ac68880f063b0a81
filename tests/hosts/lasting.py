"""Faults that last for as long as a block does, and what a study must look like after whatever happened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hosts.many import ManyHosts
from optuna.trial import FrozenTrial, TrialState

import vrampool


def all_ran_once(pool: ManyHosts, handle: vrampool.Handle, n_trials: int, *, limit_s: float = 60.0) -> None:
    """Each trial was run once and has its one result; and the pool still runs trials."""
    trials = pool.await_end(handle, limit_s=limit_s)
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * n_trials
    assert pool.log.times("started") == pool.log.times("ended") == dict.fromkeys(range(n_trials), 1)
    runs_one(pool)


def runs_one(pool: ManyHosts) -> FrozenTrial:
    """See that the pool still runs trials; return the one it ran."""
    env = {"EXECUTION_LOG": str(pool.log.path.with_name("another"))}
    (trial,) = pool.await_end(pool.submit("one", env=env))
    assert trial.state == TrialState.COMPLETE
    return trial


@contextmanager
def cut_off(pool: ManyHosts, name: str) -> Iterator[None]:
    """A host's cable is out for as long as the block lasts."""
    assert pool.network is not None
    pool.network.cut(name)
    try:
        yield
    finally:
        pool.network.heal(name)


@contextmanager
def refused(pool: ManyHosts, service: str, name: str) -> Iterator[None]:
    """The same, and the host hears of it at once instead of waiting for an answer."""
    assert pool.network is not None
    pool.network.refuse(service, name)
    try:
        yield
    finally:
        pool.network.allow(service, name)


@contextmanager
def blocked(pool: ManyHosts, service: str, name: str) -> Iterator[None]:
    """One host does not reach one of the servers for as long as the block lasts."""
    assert pool.network is not None
    pool.network.block(service, name)
    try:
        yield
    finally:
        pool.network.unblock(service, name)
