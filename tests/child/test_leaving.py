"""What a trial's process does at its end and leaves to the kernel, and what its collector need not look at."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest
from support.child_driver import ChildDriver

from vrampool_worker.child.import_hooks import after_import

OWN_END = "import weakref\nclass Own: pass\nown = Own()\nweakref.finalize(own, print, 'own finalizer ran')\n"


@pytest.mark.parametrize("preload", [(), ("torch",)], ids=["by itself", "ahead"])
def test_torch_undoes_nothing_that_ends_with_the_process(driver: ChildDriver, preload: tuple[str, ...]) -> None:
    """Its libraries would deregister each operator: 10 ms, and 40 in a fork, which has to copy what that writes to."""
    story = driver.start(
        driver.spawn(preload),
        OWN_END + "import atexit, gc, torch\n"
        "def at_exit():\n"
        "    left = [item for item in weakref.finalize._registry if item.atexit]\n"
        "    print('to undo:', [item.peek()[1] for item in left])\n"
        "def objective(trial):\n"
        "    atexit.register(at_exit)\n"
        "    gc.callbacks.append(lambda phase, info: print('collects', info['generation']))\n"
        "    return 1.0\n",
    )
    driver.until(lambda: "gone" in story.kinds)
    assert "to undo: [<built-in function print>]\n" in story.log
    assert "own finalizer ran\n" in story.log
    assert "collects 2" not in story.log, "all that torch consists of is looked at, for memory that is back anyway"
    assert story.exited["exit_code"] == 0


@pytest.mark.parametrize("preload", [(), ("colorsys",)], ids=["nothing ahead", "a module ahead"])
def test_the_collector_works_for_the_objective_and_leaves_what_was_there_alone(
    driver: ChildDriver, preload: tuple[str, ...]
) -> None:
    story = driver.start(
        driver.spawn(preload),
        "import gc\n"
        "def objective(trial):\n"
        "    ours = [item for item in gc.get_objects() if getattr(item, '__module__', '') == 'vrampool.messages']\n"
        "    classes = [item for item in ours if isinstance(item, type)]\n"
        "    return float(gc.isenabled() and gc.get_freeze_count() > 10_000 and not classes)\n",
    )
    driver.until(lambda: "gone" in story.kinds)
    assert story.outcome.values == [1.0]


def test_what_the_objective_imports_is_imported_without_collections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "heavy_module.py").write_text("import gc\nCOLLECTED = gc.isenabled()\n")
    monkeypatch.syspath_prepend(tmp_path)
    told: list[bool] = []
    after_import("heavy_module", lambda: told.append(gc.isenabled()))
    import heavy_module  # type: ignore[import-not-found]

    assert not heavy_module.COLLECTED
    assert told == [True] and gc.isenabled()
    del sys.modules["heavy_module"]
