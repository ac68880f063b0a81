"""In the child: the objective that was submitted, or a refusal; a notebook's functions are found where pickle looks."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.child_driver import ChildDriver

from vrampool.errors import ObjectiveError
from vrampool.messages import ObjectiveRef
from vrampool.objectives import load, resolve


def notebook(folder: Path, *cells: str) -> list[tuple[ObjectiveRef, bytes | None]]:
    """Run cells in one fresh `__main__`, as a kernel does, resolving `objective` after each."""
    script = f"""
import base64, json, sys
sys.path.insert(0, {str(folder)!r})
from vrampool.objectives import resolve
out = []
for cell in json.loads(sys.stdin.read()):
    exec(compile(cell, "<cell>", "exec"), globals())
    reference, bundle = resolve(objective)
    out.append([reference.to_json(), None if bundle is None else base64.b64encode(bundle).decode()])
print(json.dumps(out))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], input=json.dumps(cells), capture_output=True, text=True, cwd=folder, check=False
    )
    assert done.returncode == 0, done.stderr
    import base64

    found = json.loads(done.stdout)
    return [
        (ObjectiveRef.from_json(reference), None if body is None else base64.b64decode(body))
        for reference, body in found
    ]


def test_a_notebook_objective_runs_where_there_is_no_notebook(driver: ChildDriver, tmp_path: Path) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    (made,) = notebook(
        folder,
        "SCALE = 3\ndef helper(x): return SCALE * x\n"
        "def objective(trial): return helper(trial.suggest_float('x', 1, 1))\n",
    )
    assert made[0].kind == "bundle"
    assert driver.run(made).outcome.values == [3.0]


def test_a_redefined_helper_is_used_by_later_submissions_only(driver: ChildDriver, tmp_path: Path) -> None:
    first, second = notebook(
        tmp_path,
        "def helper(x): return x\ndef objective(trial): return helper(1.0)\n",
        "def helper(x): return 10 * x\n",
    )
    assert first[0].bundle_sha256 != second[0].bundle_sha256
    assert driver.run(second).outcome.values == [10.0]
    assert driver.run(first).outcome.values == [1.0]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_notebook_objective_may_have_a_pool_of_processes(driver: ChildDriver, tmp_path: Path, method: str) -> None:
    """Its functions say they are `__main__`'s: in the child and in what it spawns they are."""
    (made,) = notebook(
        tmp_path,
        "import dataclasses\n"
        "@dataclasses.dataclass\nclass Point:\n    x: float\n"
        "def sq(point): return Point(point.x * point.x)\n"
        "def objective(trial):\n    import multiprocessing as mp\n"
        f"    with mp.get_context({method!r}).Pool(2) as pool:\n"
        "        return float(sum(p.x for p in pool.map(sq, [Point(1), Point(2), Point(3)])))\n",
    )
    story = driver.run(made)
    assert story.outcome.values == [14.0], str(story)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_file_objective_may_have_a_pool_of_processes(driver: ChildDriver, method: str) -> None:
    story = driver.run(
        "import multiprocessing as mp\ndef sq(x): return x * x\ndef objective(trial):\n"
        f"    with mp.get_context({method!r}).Pool(2) as pool: return float(sum(pool.map(sq, [1, 2, 3])))\n"
    )
    assert story.outcome.values == [14.0], str(story)


def test_a_file_may_import_its_siblings(driver: ChildDriver, tmp_path: Path) -> None:
    (tmp_path / "a_sibling.py").write_text("VALUE = 5.0\n")
    story = driver.run("import a_sibling\ndef objective(trial): return a_sibling.VALUE\n")
    assert story.outcome.values == [5.0], str(story)


def test_a_file_with_the_name_of_a_standard_module_replaces_nothing(driver: ChildDriver, tmp_path: Path) -> None:
    path = tmp_path / "random.py"
    path.write_text("import sys\ndef objective(trial): return float(__name__ != 'random')\n")
    story = driver.run(f"{path}:objective")
    assert story.outcome.values == [1.0], str(story)


def test_the_working_directory_and_arguments_are_the_trials_own(driver: ChildDriver, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    target = driver.module(
        "import os, sys\ndef objective(trial):\n    trial.set_user_attr('cwd', os.getcwd())\n"
        "    trial.set_user_attr('argv', sys.argv)\n    return 1.0\n"
    )
    story = driver.run(resolve(target, workdir=work))
    assert story.trial is not None
    assert story.trial.user_attrs == {"cwd": str(work), "argv": [target]}


def test_variables_are_set_before_user_code_and_cannot_move_the_trial(driver: ChildDriver) -> None:
    target = driver.module(
        "import os\nAT_IMPORT = [os.environ.get(n) for n in ('MINE', 'CUDA_VISIBLE_DEVICES')]\n"
        "def objective(trial):\n    trial.set_user_attr('at_import', AT_IMPORT)\n    return 1.0\n"
    )
    import os

    story = driver.spawn(env={**os.environ, "CUDA_VISIBLE_DEVICES": "GPU-1"})
    driver.start(story, target, env={"MINE": "yes", "CUDA_VISIBLE_DEVICES": "0,1"})
    driver.until(lambda: story.child.gone)
    assert story.trial is not None and story.trial.user_attrs["at_import"] == ["yes", "GPU-1"]
    assert os.environ.get("CUDA_VISIBLE_DEVICES") != "GPU-1"


def test_another_python_is_refused_before_the_bundle_is_opened() -> None:
    """Byte code of another version does not raise, it crashes the interpreter."""
    reference, bundle = resolve(lambda trial: 1.0)
    assert bundle is not None
    with pytest.raises(ObjectiveError, match=r"bundled by Python 3\.9 and this worker runs 3\."):
        load(dataclasses.replace(reference, python="3.9"), b"not even a pickle")


def test_another_bundle_is_refused_without_being_opened() -> None:
    reference, _ = resolve(lambda trial: 1.0)
    bomb = b"cos\nsystem\n(S'exit 1'\ntR."
    with pytest.raises(ObjectiveError, match="did not arrive whole"):
        load(reference, bomb)
    with pytest.raises(ObjectiveError, match="did not arrive whole"):
        load(reference, None)


def test_source_that_was_edited_since_is_refused(driver: ChildDriver) -> None:
    target = driver.module("def objective(trial): return 1.0\n")
    made = resolve(target)
    path = Path(target.rpartition(":")[0])
    path.write_text("def objective(trial): return 2.0\n")
    outcome = driver.run(made).outcome
    assert outcome.type_name == "vrampool.errors.ObjectiveError" and outcome.loading
    assert "was changed since" in outcome.text


def test_a_file_that_is_not_on_this_machine_says_what_to_do(driver: ChildDriver) -> None:
    target = driver.module("def objective(trial): return 1.0\n")
    made = resolve(target)
    Path(target.rpartition(":")[0]).unlink()
    outcome = driver.run(made).outcome
    assert outcome.loading and "copy it there" in outcome.text


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ObjectiveError, match="older than the submission"):
        load(ObjectiveRef(kind="wasm", target="x"), None)


def test_each_trial_starts_from_scratch(driver: ChildDriver) -> None:
    """Nothing of one trial is left in the next: another process, and not a fork of this one."""
    target = driver.module(
        "import os\nSEEN = []\ndef objective(trial):\n    SEEN.append(trial.number)\n"
        "    trial.set_user_attr('facts', [os.getpid(), len(SEEN), open('/proc/self/cmdline').read()])\n"
        "    return 1.0\n"
    )
    facts: list[Any] = []
    for _ in range(3):
        story = driver.run(target)
        assert story.trial is not None
        facts.append(story.trial.user_attrs["facts"])
    assert len({pid for pid, _, _ in facts}) == 3
    assert all(seen == 1 and "vrampool_worker.child" in line for _, seen, line in facts)
