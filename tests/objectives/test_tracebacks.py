"""A traceback from a trial shows the user's file and lines, as Python does where the objective was written."""

from __future__ import annotations

import linecache
import subprocess
import sys
from pathlib import Path

import pytest
from support.child_driver import ChildDriver

from vrampool.messages import ObjectiveRef
from vrampool.objectives import resolve, source_lines

SOURCE = """\
def helper(x):
    # by nothing
    return x / 0

def objective(trial):
    return helper(
        trial.number + 1)

if __name__ == "__main__":
    import base64, json
    from vrampool.objectives import resolve
    reference, bundle = resolve(objective)
    print(json.dumps([reference.to_json(), base64.b64encode(bundle).decode()]))
"""


def bundled(script: Path) -> tuple[ObjectiveRef, bytes]:
    """Run a script that bundles its own objective."""
    import base64
    import json

    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    reference, body = json.loads(done.stdout)
    return ObjectiveRef.from_json(reference), base64.b64decode(body)


def frames(text: str) -> list[str]:
    """Return a traceback's lines without Python's marks below them, which versions draw differently."""
    return [line.strip() for line in text.splitlines() if line.strip(" ^~")]


@pytest.mark.parametrize("there", ["as it was", "edited since", "on another host"])
def test_a_scripts_file_and_lines_are_shown(driver: ChildDriver, tmp_path: Path, there: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(SOURCE)
    made = bundled(script)
    if there == "edited since":
        script.write_text("# all is new\n" * 20)
    elif there == "on another host":
        script.unlink()
    story = driver.run(made)
    assert story.outcome.type_name == "builtins.ZeroDivisionError", str(story)
    shown = frames(story.outcome.traceback)
    assert shown[:5] == [
        "Traceback (most recent call last):",
        f'File "{script}", line 6, in objective',
        "return helper(",
        f'File "{script}", line 3, in helper',
        "return x / 0",
    ], story.outcome.traceback
    assert "# by nothing" not in story.outcome.traceback


def cell(name: str, source: str) -> tuple[ObjectiveRef, bytes | None]:
    """Run a cell as IPython does, and bundle its objective: the file it names is not there, its lines are known."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    space: dict[str, object] = {"__name__": "__main__"}
    exec(compile(source, name, "exec"), space)
    return resolve(space["objective"])  # type: ignore[arg-type]


def test_a_cells_lines_are_shown_and_its_name_is_the_same_in_every_kernel(driver: ChildDriver) -> None:
    """Requests are learned over submissions of the same code: a restart of the notebook makes no other of it."""
    source = "# a cell\ndef objective(trial):\n    return 1 / 0\n"
    first = cell("/tmp/ipykernel_17/1234.py", source)
    story = driver.run(first)
    assert frames(story.outcome.traceback)[1:3] == ['File "<notebook cell 1>", line 3, in objective', "return 1 / 0"]
    assert cell("/tmp/ipykernel_4711/1234.py", source)[0].bundle_sha256 == first[0].bundle_sha256


def test_lines_beyond_a_limit_stay_at_home_and_the_objective_runs(
    driver: ChildDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_lines, "LIMIT_BYTES", 10)
    made = cell("/tmp/ipykernel_17/99.py", "def objective(trial):\n    return 1 / 0\n")
    shown = frames(driver.run(made).outcome.traceback)
    assert shown[1:] == ['File "<notebook cell 1>", line 2, in objective', "ZeroDivisionError: division by zero"]


def test_code_without_a_source_keeps_its_name(driver: ChildDriver) -> None:
    space: dict[str, object] = {"__name__": "__main__"}
    exec("def objective(trial): return 1 / 0", space)
    reference, body = resolve(space["objective"])  # type: ignore[arg-type]
    assert 'File "<string>", line 1, in objective' in driver.run((reference, body)).outcome.traceback
