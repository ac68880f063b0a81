"""What `vrampool explain` says of the parameters that drive memory."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from vrampool.cli.explain import print_model
from vrampool.memory.explaining import Driver

RECORD = SimpleNamespace(
    median_error=0.03, predicted=8, over_reserved=0.5, out_of_memory=0, infeasible=0, refused=0, ahead_bytes=None
)


def told(drivers: list[Driver], trials: int = 30) -> str:
    model = SimpleNamespace(trials=trials, others=0, bounds=0, median_error=0.01, under=0.0, overhead_bytes=0)
    found: Any = SimpleNamespace(drivers=drivers, model=model, note="", record=RECORD)
    console = Console(file=io.StringIO(), width=200)
    print_model(found, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_parameters_that_move_next_to_nothing_are_no_drivers():
    text = told([Driver("hidden", 1.02, 0.6, "grows"), Driver("lr", 0.99, 0.4, "shrinks")])
    assert "Memory does not follow any parameter: none moves it by more than 2%." in text
    assert "hidden" not in text


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_a_driver_is_named_whichever_way_it_moves_memory(factor):
    text = told([Driver("batch", factor, 0.9, "grows"), Driver("lr", 1.0, 0.1, "does not matter")])
    assert "batch" in text and "lr" not in text and "assumed" not in text


def test_few_trials_and_what_was_granted_are_told():
    text = told([Driver("batch", 2.0, 0.9, "grows")], trials=5)
    assert "With so few trials most of this is assumed, not seen." in text
    assert "Over their time 1.50 times what trials held was reserved for them." in text
