"""`--objectives import`: a worker that runs what lies on its host, and nothing that travelled."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from support.commands import call
from support.stepped_pool import BUDGET_BYTES, SteppedPool, SteppedWorker

import vrampool
from vrampool.queueing import Offer
from vrampool_worker.desk import NotOpened, Opened
from vrampool_worker.refusals import why_not

Stepped = Callable[..., AbstractContextManager[SteppedPool]]


def open_next(pool: SteppedPool, worker: SteppedWorker) -> Opened | NotOpened:
    """Have a worker take and open whatever waits."""
    worker.tell_registry()
    pool.coordinator.turn()
    offer = Offer(worker.name, uuid.uuid4().hex, BUDGET_BYTES, True, 600_000, worker.name, "cpu")
    found = worker.port.take(offer)
    assert found is not None
    return worker.desk.open(found[1])


def only_imports(worker: SteppedWorker, pool: SteppedPool) -> None:
    settings = pool.settings.with_changes(objectives="import")
    worker.desk._can_run = lambda spec: why_not(spec, settings)


def test_a_function_of_a_notebook_is_refused_with_a_reason(stepped: Stepped):
    with stepped() as pool:
        only_imports(pool.workers[0], pool)
        handle = pool.pool.submit(lambda trial: 1.0, 1, vram="10MiB")
        opened = open_next(pool, pool.workers[0])
        assert isinstance(opened, NotOpened) and opened.refuse
        assert "takes no bundles (--objectives import)" in opened.reason
        assert [trial.state.name for trial in handle.trials] == ["WAITING"], "another worker may run it"


def test_what_lies_on_the_host_runs(stepped: Stepped):
    with stepped() as pool:
        only_imports(pool.workers[0], pool)
        pool.submit(lambda trial: 1.0, 1)  # by the path of a file
        opened = open_next(pool, pool.workers[0])
        assert isinstance(opened, Opened) and opened.bundle is None


@pytest.mark.parametrize("value", ["", "none", "bundles"])
def test_another_value_is_refused(value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """A slip must not open what was meant to be shut."""
    monkeypatch.setenv("VRAMPOOL_OBJECTIVES", value)
    done = call(capsys, "worker")
    assert done.code == 2 and "'any' or 'import'" in done.err


def test_the_default_takes_both():
    assert vrampool.Settings().objectives == "any"
