"""What spares import ahead: also what trials were seen to import, and nothing else that was only thought of."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from optuna.trial import TrialState
from support.child_driver import ChildDriver
from support.pools import facts_of

from vrampool.settings import Settings
from vrampool_worker.children.preloading import Preloading

#: Small modules of the standard library that nothing else imports.
SEEN, NEVER = "sndhdr" if sys.version_info < (3, 13) else "wave", "colorsys"


def test_a_module_with_a_mark_is_imported_ahead_once_a_trial_has_imported_it():
    preloading = Preloading(("torch", "torch._dynamo?", "more?"))
    assert preloading.everything == ("torch", "torch._dynamo", "more")
    assert (preloading.now, preloading.awaited) == (("torch",), ("more", "torch._dynamo"))
    preloading.seen(["torch._dynamo", "something else"])
    assert (preloading.now, preloading.awaited) == (("torch", "torch._dynamo"), ("more",))


def test_a_submission_needs_them_if_one_of_its_trials_has_imported_them_by_itself():
    preloading = Preloading(("torch", "torch._dynamo?"))
    assert preloading.needs("a") is None
    preloading.note("a", ["torch", "torch._dynamo"])
    preloading.note("b", ["torch._dynamo"])
    assert (preloading.needs("a"), preloading.needs("b"), preloading.needs("c")) == (True, False, None)
    for number in range(100):
        preloading.note(str(number), [])
    assert preloading.needs("a") is None, "an old one is forgotten"


def test_torch_is_always_and_what_its_optimizers_need_on_sight():
    preloading = Preloading(Settings().preload_modules)
    assert (preloading.now, preloading.awaited) == (("torch",), ("torch._dynamo",))


def test_later_trials_find_what_the_first_one_had_to_import(make_pool, tmp_path: Path):
    source = tmp_path / "objective.py"
    source.write_text(
        "import importlib, sys\n\n\ndef objective(trial):\n"
        f"    trial.set_user_attr('there', [name in sys.modules for name in ({SEEN!r}, {NEVER!r}, 'json')])\n"
        f"    importlib.import_module({SEEN!r})\n    return 1.0\n"
    )
    pool = make_pool(preload=f"json,{SEEN}?,{NEVER}?", max_trials=1)
    trials = pool.run(f"{source}:objective", 4, max_concurrent_trials=1).trials
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 4
    there = [trial.user_attrs["there"] for trial in trials]
    assert there[0] == [False, False, True]
    assert there[-1] == [True, False, True], "spares that were made since have it"


def test_a_trial_does_not_wait_for_imports_that_it_may_not_need(make_pool, tmp_path: Path):
    """The import never ends: nor do the spares that do it ever become ready."""
    (tmp_path / "endless_module.py").write_text("import time\nwhile True:\n    time.sleep(0.1)\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    pool = make_pool(preload="endless_module", env={"PYTHONPATH": path})
    trials = pool.run(lambda trial: 1.0, 3, max_concurrent_trials=1).trials
    assert [trial.value for trial in trials] == [1.0] * 3
    assert not any(facts_of(trial).forked for trial in trials)


def test_the_collector_is_off_during_imports_and_on_again_for_the_trial(tmp_path: Path):
    (tmp_path / "looking_module.py").write_text("import gc\nENABLED = gc.isenabled()\n")
    driver = ChildDriver(tmp_path)
    try:
        story = driver.start(
            driver.spawn(("looking_module",), {**os.environ, "PYTHONPATH": str(tmp_path)}),
            "def objective(trial):\n    import gc, sys\n"
            "    return 10.0 * sys.modules['looking_module'].ENABLED + gc.isenabled()",
        )
        driver.until(lambda: story.child.gone)
        assert story.outcome.values == [1.0]
    finally:
        driver.close()
