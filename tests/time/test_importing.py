"""Modules that are imported ahead of trials and hang, or print without end: named early, kept small, and trials run."""

from __future__ import annotations

import logging
import os
import selectors
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from optuna.trial import TrialState
from support.child_driver import ChildDriver, driver  # noqa: F401
from support.commands import call
from support.pools import facts_of, only
from support.waiting import until

from vrampool_worker.children import importing
from vrampool_worker.children.forkserver import ForkServer
from vrampool_worker.children.spares import SpareShelf
from vrampool_worker.lanes import turn

#: It waits for what never comes, as for a lock or a server that does not answer.
HANGS = "import threading\nthreading.Event().wait()\n"
#: It computes until it is told to stop.
COMPUTES = "import os, time\nwhile not os.path.exists(os.environ['GO']):\n    sum(range(100_000))\n"
#: 31 MB, and what one wants to read last.
PRINTS = "import sys\nfor _ in range(31):\n    print('x' * 1_000_000)\nprint('it says why', file=sys.stderr)\n"
LIMIT_S = 20.0


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Write a module that whatever is started finds; return its name."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("GO", str(tmp_path / "go"))

    def write(source: str) -> str:
        (tmp_path / "ahead_of_all.py").write_text(source)
        return "ahead_of_all"

    return write


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "SLOW_S", 0.5)


class Loop:
    """A server in a main loop."""

    def __init__(self, server: ForkServer, selector: selectors.BaseSelector) -> None:
        self.server = server
        self._selector = selector

    def until(self, condition: Callable[[], object]) -> None:
        end_s = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < end_s
            self.server.imports(time.monotonic())
            turn(self._selector, 0.05)


@contextmanager
def serving(name: str) -> Iterator[Loop]:
    server = ForkServer(dict(os.environ), [name])
    with selectors.DefaultSelector() as selector:
        server.start()
        try:
            server.register(selector)
            yield Loop(server, selector)
        finally:
            server.close()


def test_a_server_whose_import_hangs_is_not_waited_for_and_the_module_is_named(module, quick, caplog):
    with serving(module(HANGS)) as loop:
        assert loop.server.imports(time.monotonic())
        loop.until(lambda: loop.server.trouble)
        assert loop.server.trouble.startswith("importing ahead_of_all ahead of trials has done nothing for 0 s")
        assert "leave it out of --preload" in loop.server.trouble
        assert not loop.server.imports(time.monotonic()), "trials are spawned"
        assert [record.levelname for record in caplog.records if "ahead_of_all" in record.message] == ["WARNING"]


def test_one_that_computes_is_slow_and_does_not_hang(module, quick, caplog, tmp_path):
    caplog.set_level(logging.INFO)
    with serving(module(COMPUTES)) as loop:
        loop.until(lambda: "importing ahead_of_all ahead of trials takes long" in caplog.text)
        assert loop.server.imports(time.monotonic()) and not loop.server.trouble
        (tmp_path / "go").touch()
        loop.until(lambda: loop.server.ready)
        assert not loop.server.trouble


def test_of_what_a_server_prints_little_is_kept(module, caplog, capfd):
    """It went into the worker's own log, 31 MB each time that a worker began."""
    caplog.set_level(logging.INFO)
    with serving(module(PRINTS)) as loop:
        loop.until(lambda: loop.server.ready)
        assert "printed 31000043 bytes" in caplog.text and "it says why" in caplog.text
        assert len(caplog.text) < 5000
    printed = capfd.readouterr()
    assert len(printed.out) + len(printed.err) < 5000


def test_a_child_says_what_it_imports(driver: ChildDriver, module, quick):  # noqa: F811
    story = driver.spawn((module(HANGS),), dict(os.environ))
    driver.until(lambda: story.child.importing is not None)
    now = story.child.importing
    assert now is not None and now.module == "ahead_of_all"
    driver.until(lambda: now.look(time.monotonic()) or now.hangs)
    plain = driver.spawn()
    driver.until(lambda: plain.child.ready)
    assert plain.child.importing is None


def test_no_trial_is_given_to_a_child_whose_import_hangs(driver: ChildDriver, module, quick):  # noqa: F811
    """Not even one that needs what is imported: another such child would hang as well."""
    name, made = module(HANGS), []

    class Source:
        def spawn(self, full: bool):
            made.append(full)
            return driver.spawn((name,) if full else (), dict(os.environ)).child

        def cheap(self) -> bool:
            return False

        def soon(self, now_s: float) -> bool:
            return False

    shelf = SpareShelf(Source(), lambda child: None, 1)
    shelf.fill(time.monotonic())
    driver.until(lambda: shelf.fill(time.monotonic()) or made == [False, True])
    driver.until(lambda: shelf.fill(time.monotonic()) or shelf.trouble)
    assert shelf.trouble.startswith("importing ahead_of_all ahead of trials has done nothing")
    assert shelf.take(needs=True).bare and shelf.take(needs=True).bare
    assert made == [False, True, False]


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_a_pool_says_which_module_hangs_and_its_trials_run(make_pool, module, capsys, start_method):
    """They waited for it for half a minute, without a word."""
    live = make_pool(start_method=start_method, preload=module(HANGS), grace_s=0.5)
    trial = only(live.submit(lambda trial: 1.0).wait(importing.SLOW_S + 10))
    assert trial.state == TrialState.COMPLETE and not facts_of(trial).forked
    until(lambda: live.device().troubles, what="a word on the import")
    done = call(capsys, "status", "--state-dir", live.state_dir)
    assert "importing ahead_of_all ahead of trials has done nothing" in " ".join(done.out.split()), done
