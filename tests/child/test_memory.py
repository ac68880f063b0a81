"""The cap of a trial's memory on the CPU; seeds; and hooks at the end of an import."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from support.child_driver import ChildDriver, Story, recapped

from vrampool.units import MIB
from vrampool_worker.child.import_hooks import after_import
from vrampool_worker.child.memory import data_slack_bytes
from vrampool_worker.children.child import EventKind

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")


# ---- on the CPU --------------------------------------------------------------------------------------


def test_a_trial_on_the_cpu_cannot_hold_more_than_its_cap(driver: ChildDriver) -> None:
    story = driver.run(
        "import resource\ndef objective(trial):\n"
        "    trial.set_user_attr('limit', resource.getrlimit(resource.RLIMIT_DATA))\n"
        "    held = [bytearray(16 * 2**20) for _ in range(200)]\n    return 1.0\n",
        cap_bytes=100 * MIB,
    )
    assert story.first(EventKind.STARTED) == {"cap_bytes": 100 * MIB, "cap_source": "RLIMIT_DATA"}
    assert story.trial is not None
    assert story.trial.user_attrs["limit"] == [100 * MIB + data_slack_bytes()] * 2
    assert (story.outcome.kind, story.outcome.memory["device"]) == ("oom", "host")


def test_numpy_that_asks_for_too_much_is_told_as_out_of_host_memory(driver: ChildDriver) -> None:
    story = driver.run(
        "import numpy as np\ndef objective(trial):\n    return float(np.ones(2**30).sum())\n", cap_bytes=200 * MIB
    )
    assert (story.outcome.kind, story.outcome.memory["device"]) == ("oom", "host")
    assert story.outcome.memory["asked_bytes"] == 2**33


def test_a_trial_offers_itself_to_the_oom_killer(driver: ChildDriver) -> None:
    story = driver.run("def objective(trial):\n    return float(open('/proc/self/oom_score_adj').read())\n")
    assert story.outcome.values == [800.0]


def test_a_cap_can_be_moved_while_the_trial_runs(driver: ChildDriver) -> None:
    """Down and up again, but never above what it began with: so the kernel rules for the unprivileged."""
    story = driver.start(
        driver.spawn(),
        "import resource, time\ndef objective(trial):\n    print('begun', flush=True)\n"
        f"    while resource.getrlimit(resource.RLIMIT_DATA)[0] != {300 * MIB + data_slack_bytes()}: time.sleep(0.01)\n"
        "    return 1.0\n",
        cap_bytes=400 * MIB,
    )
    driver.until(lambda: story.first(EventKind.STARTED))
    for asked, given in ((200 * MIB, 200 * MIB), (900 * MIB, 400 * MIB), (300 * MIB, 300 * MIB)):
        before = story.kinds.count("recapped")
        story.child.recap(asked)
        driver.until(lambda before=before: story.kinds.count("recapped") > before)
        last = [event for event in story.events if event.kind is EventKind.RECAPPED][-1]
        assert last.data == recapped(asked, given)
    driver.until(lambda: story.child.gone)
    assert story.outcome.sample["cap_bytes"] == 300 * MIB


def test_a_cap_that_may_grow_can_be_raised_up_to_its_ceiling(driver: ChildDriver) -> None:
    """The kernel goes by the soft limit; what the trial may ever have is the hard one."""
    gate = driver.folder / "gate"
    story = driver.start(
        driver.spawn(),
        "import os, time\ndef objective(trial):\n    held = []\n    try:\n"
        "        while True: held.append(bytearray(16 * 2**20))\n    except MemoryError:\n        before = len(held)\n"
        "    print('full', flush=True)\n    end = time.monotonic() + 20\n"
        "    while time.monotonic() < end:\n        try:\n            held.append(bytearray(16 * 2**20))\n"
        "            break\n        except MemoryError:\n            time.sleep(0.01)\n"
        f"    while not os.path.exists({str(gate)!r}) and time.monotonic() < end: time.sleep(0.01)\n"
        "    return float(len(held) > before)\n",
        cap_bytes=100 * MIB,
        ceiling_bytes=300 * MIB,
    )
    driver.until(lambda: "full" in story.child.log_tail())
    for asked, given in ((200 * MIB, 200 * MIB), (900 * MIB, 300 * MIB)):
        before = story.kinds.count("recapped")
        story.child.recap(asked)
        driver.until(lambda before=before: story.kinds.count("recapped") > before)
        assert [event for event in story.events if event.kind is EventKind.RECAPPED][-1].data == recapped(asked, given)
    gate.touch()
    driver.until(lambda: story.child.gone)
    assert story.outcome.values == [1.0], str(story)


def test_a_cap_is_never_lowered_below_what_the_kernel_counts_already(driver: ChildDriver) -> None:
    story = driver.start(
        driver.spawn(),
        "import time\ndef objective(trial):\n    held = bytearray(900 * 2**20)\n    print('begun', flush=True)\n"
        "    time.sleep(0.5)\n    return float(len(bytearray(4 * 2**20)))\n",
        cap_bytes=1000 * MIB,
        ceiling_bytes=1000 * MIB,
    )
    driver.until(lambda: "begun" in story.child.log_tail())
    story.child.recap(10 * MIB)
    driver.until(lambda: story.child.gone)
    answer = story.first(EventKind.RECAPPED)
    assert answer is not None and 10 * MIB < answer["cap_bytes"] < 1000 * MIB
    assert story.outcome.values == [4 * MIB], str(story)


def test_without_a_cap_nothing_is_limited(driver: ChildDriver) -> None:
    story = driver.run(
        "import resource\ndef objective(trial):\n    return float(resource.getrlimit(resource.RLIMIT_DATA)[0])\n"
    )
    assert story.first(EventKind.STARTED) == {"cap_bytes": None, "cap_source": "none"}
    assert story.outcome.values == [-1.0]


# ---- seeds -------------------------------------------------------------------------------------------

DRAWS = (
    "import random\ndef objective(trial):\n    import numpy as np\n    import torch\n"
    "    trial.set_user_attr('draws', [random.random(), float(np.random.rand()), float(torch.rand(1))])\n"
    "    return 1.0\n"
)


def draws(story: Story) -> list[float]:
    assert story.trial is not None and story.outcome.kind == "value", str(story)
    found: list[float] = story.trial.user_attrs["draws"]
    return found


@needs_torch
def test_what_a_trial_draws_depends_on_its_seed_alone(driver: ChildDriver) -> None:
    """Whether the libraries were loaded ahead, with the objective, or inside of it."""
    late = draws(driver.run(DRAWS, seed=11))
    ahead = driver.start(driver.spawn(preload=("random", "numpy", "torch")), DRAWS, seed=11)
    driver.until(lambda: ahead.child.gone, limit_s=60)
    assert draws(ahead) == late
    other = draws(driver.run(DRAWS, seed=12))
    assert all(first != second for first, second in zip(late, other, strict=True))


@needs_torch
def test_a_seed_of_the_objectives_own_is_not_undone_by_a_later_import(driver: ChildDriver) -> None:
    source = (
        "import random\ndef objective(trial):\n    random.seed(5)\n    import numpy\n    import torch\n"
        "    return random.random()\n"
    )
    import random

    assert driver.run(source, seed=11).outcome.values == [random.Random(5).random()]


# ---- hooks at the end of an import -------------------------------------------------------------------


def test_a_call_waits_for_the_end_of_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hooked_module.py").write_text("STATE = ['begun']\nSTATE.append('ended')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen: list[list[str]] = []
    after_import("hooked_module", lambda: seen.append(list(sys.modules["hooked_module"].STATE)))
    assert seen == []
    module = importlib.import_module("hooked_module")
    assert seen == [["begun", "ended"]]
    assert module.__spec__ is not None and type(module.__spec__.loader).__name__ == "SourceFileLoader"
    after_import("hooked_module", lambda: seen.append(["now"]))
    assert seen[1:] == [["now"]]
    sys.modules.pop("hooked_module")


def test_a_call_that_raises_breaks_nobodys_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hooked_too.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    after_import("hooked_too", lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    assert importlib.import_module("hooked_too").VALUE == 1
    assert "ZeroDivisionError" in capsys.readouterr().err
    sys.modules.pop("hooked_too")


def test_a_lazy_loader_makes_the_call_when_it_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hooked_lazily.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen: list[int] = []
    after_import("hooked_lazily", lambda: seen.append(1))
    spec = importlib.util.find_spec("hooked_lazily")
    assert spec is not None and spec.loader is not None
    loader = importlib.util.LazyLoader(spec.loader)
    spec.loader = loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["hooked_lazily"] = module
    loader.exec_module(module)
    assert seen == []
    assert module.VALUE == 1
    assert seen == [1]
    sys.modules.pop("hooked_lazily")
