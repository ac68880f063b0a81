"""What `vrampool run` prints at the end, whatever a study is called, and what it says when the study's file is gone."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from vrampool.cli.output import print_failures, print_summary
from vrampool.cli.run import _gone_file
from vrampool.settings import output_path


def summary(study: str, **changes: Any) -> dict[str, Any]:
    found = {"study": study, "state": "done", "reason": "", "counts": {"COMPLETE": 2}, "wall_s": 1.0, "trials": []}
    return found | {"best_value": 0.5, "best_params": {"x": "[/y]"}, "failures": {}} | changes


@pytest.mark.parametrize("name", ["[/x]", "[bold]", "%s{}[red]x[/red]", "plain"])
def test_a_name_that_looks_like_markup_is_printed_as_it_is(name, capsys):
    print_summary(summary(name))
    told = capsys.readouterr().out
    assert f"{name}: done; 2 complete in 1.0 s" in told
    assert "best value 0.5 with x=[/y]" in told


def test_of_a_long_front_the_first_are_printed(capsys):
    values = [[float(number), 1.0] for number in range(11)]
    print_summary(summary("two", best_value=values, best_params=[{"x": number} for number in range(11)]))
    told = capsys.readouterr().out
    assert "11 trials on the Pareto front" in told
    assert "  7, 1 with x=7" in told and "  8, 1" not in told
    assert "and 3 more" in told


def test_a_file_that_was_deleted_under_its_study_is_told(tmp_path):
    path = tmp_path / "study.db"
    assert f"{path} was deleted" in _gone_file(f"sqlite:///{path}")
    path.touch()
    assert _gone_file(f"sqlite:///{path}") == ""
    assert _gone_file("postgresql+psycopg://hub/optuna") == _gone_file(None) == ""


def test_what_a_trial_printed_is_named_as_a_file_where_no_pool_is_left_to_be_asked(tmp_path, capsys):
    failed = {"number": 3, "state": "FAIL", "pid": 5, "params": {}}
    found = summary("deep/er", trials=[], counts={"FAIL": 1}, failures={"ValueError: no": 1}) | {"trials": [failed]}
    console = Console(width=200)
    print_failures(console, found)
    assert "what it printed: vrampool logs deep/er 3" in capsys.readouterr().out
    print_failures(console, found, tmp_path)
    assert "what it printed: vrampool logs deep/er 3" in capsys.readouterr().out, "there is no such file"
    file = output_path(tmp_path, "deep/er", 3)
    file.parent.mkdir(parents=True)
    file.touch()
    print_failures(console, found, tmp_path)
    assert f"what it printed: {file}" in capsys.readouterr().out
