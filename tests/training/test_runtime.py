"""What the helpers tell the pool about the running trial."""

from __future__ import annotations

import subprocess
import sys

from vrampool.training import runtime


def test_importing_the_package_loads_neither_torch_nor_optuna():
    """In an interpreter where torch cannot be imported at all."""
    code = (
        "import sys; sys.modules['torch'] = None; import vrampool.training\n"
        "heavy = {'optuna', 'numpy', 'psutil', 'accelerate', 'redis', 'rq', 'sqlalchemy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "vrampool.training.runtime.install(vrampool.training.runtime.TrialRuntime())\n"
        "vrampool.training.clean_up(ValueError())\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_outside_a_pool_there_are_no_facts_and_reports_go_nowhere():
    assert runtime.current() is None
    runtime.count_steps(1)
    runtime.note_oom_handled()
    runtime.update(lease_bytes=1)
    assert not runtime.attach()
    assert runtime.current() is None


def test_a_lease_that_changes_is_seen_by_the_helpers(told):
    runtime.install(told.runtime(lease_bytes=100, cap_bytes=80))
    runtime.update(lease_bytes=50, cap_bytes=30)
    facts = runtime.current()
    assert facts is not None
    assert (facts.lease_bytes, facts.cap_bytes) == (50, 30)


def test_a_hint_is_given_once_for_each_kind(told):
    runtime.install(told.runtime())
    for text in ("first", "again"):
        runtime.note_hint("shapes", text)
    runtime.note_hint("skipped", "other")
    assert told.hints == ["first", "other"]


def test_a_hint_outside_a_pool_is_logged(caplog):
    runtime.note_hint("a kind of this test", "pad them")
    assert "pad them" in caplog.text
