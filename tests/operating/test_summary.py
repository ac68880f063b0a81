"""What `vrampool run` prints at the end, whatever a study is called, and what it says when the study's file is gone."""

from __future__ import annotations

from typing import Any

import pytest

from vrampool.cli.output import print_summary
from vrampool.cli.run import _gone_file


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
