"""A pool of two hosts that tests share, and pools of one's own for what would spoil it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hosts.many import ManyHosts, living, many_hosts
from hosts.network import Network, why_not
from support.surroundings import no_experimental_warnings, own_settings, quiet_optuna

__all__ = ["no_experimental_warnings", "own_settings", "quiet_optuna"]

MakeHosts = Callable[..., ManyHosts]


@pytest.fixture(scope="session")
def namespaces() -> None:
    """Skip where the kernel makes no hosts."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="package")
def shared(
    namespaces: None, own_settings: None, quiet_optuna: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ManyHosts]:
    """Two hosts with a worker each, unlike in size, and a coordinator on one of them."""
    pytest.importorskip("psycopg")
    names = ["h1", "h2"]
    with many_hosts(tmp_path_factory.mktemp("hosts"), Network(names), *names) as made:
        made["h1"].coordinator()
        made["h1"].worker(budget="300MiB")
        made["h2"].worker(budget="150MiB")
        for name in names:
            made[name].await_ready()
        yield made


@pytest.fixture
def hosts(shared: ManyHosts, tmp_path: Path) -> Iterator[ManyHosts]:
    """The hosts that tests share: whatever was before, they take trials."""
    shared.begin(tmp_path)
    for host in shared.hosts.values():
        host.await_ready()
    yield shared
    shared.clear()


@pytest.fixture
def make_hosts(namespaces: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeHosts]:
    """Make hosts of one's own: ``make_hosts("h1", "h2", lease_ttl_s=3)``; nothing runs on them yet."""
    pytest.importorskip("psycopg")
    with ExitStack() as stack:

        def make(*names: str, **options: Any) -> ManyHosts:
            return stack.enter_context(many_hosts(tmp_path_factory.mktemp("hosts"), Network(names), *names, **options))

        yield make


@pytest.fixture
def make_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeHosts]:
    """The same on this machine alone, for faults that need no cable."""
    pytest.importorskip("psycopg")
    with ExitStack() as stack:

        def make(*names: str, **options: Any) -> ManyHosts:
            return stack.enter_context(many_hosts(tmp_path_factory.mktemp("pool"), None, *names, **options))

        yield make


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.failed:
        for one in living:
            report.sections.append((f"logs of the pool in {one.folder}", one.logs()))
    return report
