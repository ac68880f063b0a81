"""RQ's own worker tests over our worker class. Its tests come with its source from the package index; none is copied.

make rq-suite
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytest
from rq_suite.exceptions import LIMIT, REASONS
from support.tcp_valkey import free_port
from support.waiting import until

from vrampool.local.embedded import server_binary

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]
HERE = Path(__file__).parent
#: Those in which a worker takes part; RQ's queue, cron, scheduler and command line are no concern of ours.
MODULES = [
    "test_worker.py",
    "test_worker_registration.py",
    "test_commands.py",
    "test_callbacks.py",
    "test_retry.py",
    "test_results.py",
    "test_repeat.py",
    "test_job_dependency.py",
    "test_dependencies.py",
    "test_intermediate_queue.py",
    "test_executions.py",
    "test_group.py",
    "test_registry.py",
    "test_job_lifecycle.py",
]


@dataclass(frozen=True)
class Report:
    """How RQ's tests ended, by their ids."""

    passed: frozenset[str]
    failed: dict[str, str]  #: with the first line of why
    skipped: frozenset[str]
    output: str


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RQ's source in the version that is installed; only its tests are used."""
    folder = tmp_path_factory.mktemp("rq")
    wanted = f"rq=={version('rq')}"
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "rq", wanted, "-d", folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    if done.returncode != 0:
        pytest.skip(f"the package index has no source of {wanted}: {done.stderr.strip().splitlines()[-1:]}")
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    (unpacked,) = [path for path in folder.iterdir() if path.is_dir()]
    if not (unpacked / "tests" / "test_worker.py").exists():
        pytest.skip(f"the source of {wanted} ships no tests")
    shutil.move(unpacked / "rq", unpacked / "rq-source")  # the installed one is tested, not this copy
    return unpacked


@contextlib.contextmanager
def plain_valkey(folder: Path) -> Iterator[int]:
    """A server without a password, as RQ's tests want one; gives its port."""
    import redis

    port = free_port()
    options = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", str(folder), "--databases", "32"]
    with (folder / "valkey.log").open("wb") as log:
        process = subprocess.Popen([str(server_binary()), *options], stdout=log, stderr=log)
    try:
        client = redis.Redis(port=port)

        def answers() -> bool:
            with contextlib.suppress(redis.RedisError):
                return bool(client.ping())
            return False

        until(answers, what="an answer of Valkey")
        yield port
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture(scope="module")
def report(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """All modules; what failed for no known reason is run a second time, alone.

    Some of these tests are about a second more or less, and two need an init process that reaps orphans at once: on
    a busy host they fail now and then for RQ's own worker too.
    """
    folder = tmp_path_factory.mktemp("run")
    first = _run(source, folder, [f"tests/{name}" for name in MODULES])
    doubtful = sorted(set(first.failed) - set(REASONS))
    if not doubtful:
        return first
    again = _run(source, folder, [_node_id(name) for name in doubtful])
    failed = {name: why for name, why in first.failed.items() if name not in again.passed}
    return Report(first.passed | again.passed, failed, first.skipped, first.output + again.output)


def _run(source: Path, folder: Path, tests: list[str]) -> Report:
    result = folder / "result.xml"
    result.unlink(missing_ok=True)
    paths = [str(HERE / "site"), str(HERE), str(source), os.environ.get("PYTHONPATH", "")]
    options = ["-p", "swap", "-p", "no:cacheprovider", "-q", "--timeout=90", f"--junitxml={result}", "-o", "addopts="]
    with plain_valkey(folder) as port:
        env = {
            **os.environ,
            "SUITE_REDIS_PORT": str(port),
            "RUN_SLOW_TESTS_TOO": "1",
            "VRAMPOOL_STORAGE": f"sqlite:///{folder}/none.db",
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),  # `rq` and `rqworker`
            "PYTHONPATH": os.pathsep.join(paths),
        }
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *tests],
            cwd=source,
            env=env,
            capture_output=True,
            text=True,
            timeout=1_100,
        )
    assert result.exists(), done.stdout + done.stderr
    return _read(result, done.stdout + done.stderr)


def _node_id(name: str) -> str:
    module, case, test = name.split(".", 2)
    return f"tests/{module}.py::{case}::{test}"


def _read(result: Path, output: str) -> Report:
    passed, failed, skipped = set(), {}, set()
    for case in ET.parse(result).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('tests.')[2]}.{case.get('name')}"
        bad = case.find("failure") if case.find("failure") is not None else case.find("error")
        if bad is not None:
            failed[name] = (bad.get("message") or "").splitlines()[0][:200] if bad.get("message") else ""
        elif case.find("skipped") is not None:
            skipped.add(name)
        else:
            passed.add(name)
    return Report(frozenset(passed), failed, frozenset(skipped), output)


def test_rqs_worker_tests_hold_for_our_worker_class(report: Report):
    unexpected = {name: why for name, why in report.failed.items() if name not in REASONS}
    assert unexpected == {}, report.output[-4_000:]
    assert len(report.passed) > 250, "the suite was really run"


def test_the_exceptions_are_few_and_needed(report: Report):
    """One that passes by now is taken off the list."""
    assert len(REASONS) <= LIMIT and all(len(reason) > 20 for reason in REASONS.values())
    assert set(REASONS) - set(report.failed) == set()


def test_the_slow_ones_were_run_too(report: Report):
    """They are those about SIGTERM, once and twice, and about work-horses that die."""
    shutdown = {name for name in report.passed | set(report.failed) if "WorkerShutdownTestCase" in name}
    assert len(shutdown) >= 6
