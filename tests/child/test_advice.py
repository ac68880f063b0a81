"""What the process of a trial advises at its end."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from vrampool.messages import ChildFrame, ChildStart, ObjectiveRef
from vrampool_worker.child.training_link import BENCHMARK_HINT, TrainingLink


@pytest.mark.parametrize(
    ("device", "benchmark", "advised"), [("cuda", True, True), ("cuda", False, False), ("cpu", True, False)]
)
def test_cudnn_s_benchmark_that_the_objective_turned_on_is_advised_against(monkeypatch, device, benchmark, advised):
    torch = SimpleNamespace(backends=SimpleNamespace(cudnn=SimpleNamespace(benchmark=benchmark)))
    monkeypatch.setitem(sys.modules, "torch", torch)
    sent = []
    start = ChildStart(objective=ObjectiveRef("import", "m:f"), trial={}, device=device)
    nothing = lambda *_: None  # noqa: E731
    TrainingLink(start, lambda kind, **fields: sent.append((kind, fields)), nothing, nothing).finish()
    assert sent == ([(ChildFrame.HINT, {"text": BENCHMARK_HINT})] if advised else [])
