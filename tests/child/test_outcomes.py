"""What an objective returns or raises becomes an outcome by Optuna's rules; nothing of it travels as an object."""

from __future__ import annotations

import math
import socket

import numpy as np
import optuna
import pytest
from support.child_driver import ChildDriver, alive, wait_for

from vrampool_worker.child.outcomes import TEXT_LIMIT, from_error, from_value, shorten


@pytest.mark.parametrize(
    ("returned", "values"),
    [
        (0.1 + 0.2, [0.1 + 0.2]),
        (5e-324, [5e-324]),
        (math.inf, [math.inf]),
        (-math.inf, [-math.inf]),
        (True, [1.0]),
        (3, [3.0]),
        (np.float32(0.5), [0.5]),
        (np.int64(7), [7.0]),
        ([1.0], [1.0]),
        ((2,), [2.0]),
    ],
)
def test_what_optuna_takes_for_a_value_is_one(returned: object, values: list[float]) -> None:
    outcome = from_value(returned, 1)
    assert (outcome.kind, outcome.values) == ("value", values)
    study = optuna.create_study()
    assert study.tell(study.ask(), returned).values == values  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("returned", "kind"),
    [
        (None, "NoneType"),
        (math.nan, "float"),
        ("abc", "str"),
        ("0.5", "str"),
        (b"1", "bytes"),
        (["0.5"], "list"),
        ([math.nan], "list"),
        ((1.0, 2.0), "tuple"),
        ([], "list"),
        ({"loss": 1.0}, "dict"),
        (10**400, "int"),
        (1j, "complex"),
        (np.array([1.0, 2.0]), "numpy.ndarray"),
    ],
)
def test_what_is_no_value_fails_and_names_its_type(returned: object, kind: str) -> None:
    outcome = from_value(returned, 1)
    assert outcome.kind == "failed"
    assert f"of type {kind}" in outcome.text
    assert outcome.type_name == ""  # nothing was raised: `catch` has no say


def test_each_objective_needs_its_value() -> None:
    assert from_value((1.0, 2.0), 2).values == [1.0, 2.0]
    assert "1 values for a study with 2 objectives" in from_value(1.0, 2).text


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class TwoArguments(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__("two args")


def test_an_exception_that_cannot_be_pickled_or_printed_still_has_its_outcome() -> None:
    assert from_error(TwoArguments(1, 2)).text == "two args"
    assert "cannot be made" in from_error(Unprintable()).text


def test_the_bases_of_an_exception_are_named_for_catch() -> None:
    outcome = from_error(FileNotFoundError("x"))
    assert outcome.type_name == "builtins.FileNotFoundError"
    assert outcome.mro == (
        "builtins.FileNotFoundError",
        "builtins.OSError",
        "builtins.Exception",
        "builtins.BaseException",
    )


def test_a_long_text_is_cut_with_a_note() -> None:
    text = from_error(RuntimeError("y" * 5_000_000)).text
    assert len(text) < TEXT_LIMIT + 100
    assert "of 5000000 characters left out" in text
    assert shorten("short", 10) == "short"


def test_out_of_memory_is_seen_through_what_was_raised_from_it() -> None:
    def raised() -> BaseException:
        try:
            try:
                raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of")
            except RuntimeError as cause:
                raise ValueError("training failed") from cause
        except ValueError as error:
            return error

    outcome = from_error(raised())
    assert outcome.kind == "oom"
    assert outcome.memory["device"] == "cuda"
    assert outcome.memory["asked_bytes"] == 2 * 1024**3
    assert from_error(ExceptionGroup("several", [MemoryError(), ValueError("x")])).kind == "oom"
    assert from_error(ValueError("my config says: CUDA out of memory is possible")).kind == "failed"


# ---- in a real child ---------------------------------------------------------------------------------


def test_a_value_comes_back_bit_by_bit(driver: ChildDriver) -> None:
    story = driver.run("def objective(trial): return 0.1 + 0.2")
    assert story.outcome.values == [0.1 + 0.2]
    assert story.kinds == ["ready", "started", "outcome", "exited", "gone"]


def test_an_exception_arrives_with_the_line_that_raised_it(driver: ChildDriver) -> None:
    story = driver.run(
        "class Bad(Exception):\n"
        "    def __init__(self, a, b): super().__init__('two args')\n"
        "def objective(trial):\n"
        "    raise Bad(1, 2)  # here\n"
    )
    assert story.outcome.kind == "failed"
    assert story.outcome.type_name.endswith(".Bad")
    assert story.outcome.text == "two args"
    assert "raise Bad(1, 2)  # here" in story.outcome.traceback
    assert "trial_run" not in story.outcome.traceback
    assert "raise Bad(1, 2)  # here" in story.log


@pytest.mark.parametrize(
    ("body", "type_name", "code", "text"),
    [
        ("import sys; sys.exit(3)", "builtins.SystemExit", 3, "exit code 3"),
        ("import sys; sys.exit(0)", "builtins.SystemExit", 0, "exit code 0"),
        ("import sys; sys.exit('usage')", "builtins.SystemExit", 1, "exit code 1: usage"),
        ("raise KeyboardInterrupt", "builtins.KeyboardInterrupt", None, ""),
        ("raise GeneratorExit('x')", "builtins.GeneratorExit", None, "x"),
    ],
)
def test_what_is_no_exception_fails_as_well(
    driver: ChildDriver, body: str, type_name: str, code: int | None, text: str
) -> None:
    outcome = driver.run(f"def objective(trial):\n    {body}\n").outcome
    assert (outcome.kind, outcome.type_name, outcome.exit_code, outcome.text) == ("failed", type_name, code, text)


@pytest.mark.parametrize(
    ("body", "state", "value", "reports"),
    [
        ("trial.report(0.7, 3); raise optuna.TrialPruned()", "PRUNED", 0.7, {3: 0.7}),
        ("raise optuna.TrialPruned()", "PRUNED", None, {}),
        ("trial.report(float('nan'), 0); trial.report(0.4, 1); return 0.4", "COMPLETE", 0.4, {0: math.nan, 1: 0.4}),
        ("raise MyPrune('early')", "PRUNED", None, {}),
    ],
)
def test_pruning_is_told_as_optuna_tells_it(
    driver: ChildDriver, body: str, state: str, value: float | None, reports: dict[int, float]
) -> None:
    story = driver.run(f"import optuna\nclass MyPrune(optuna.TrialPruned): pass\ndef objective(trial):\n    {body}\n")
    assert story.study is not None and story.trial is not None
    if story.outcome.kind == "pruned":
        told = story.study.tell(story.trial, state=optuna.trial.TrialState.PRUNED)
    else:
        told = story.study.tell(story.trial, story.outcome.values)
    assert (told.state.name, told.value) == (state, value)
    assert {step: repr(number) for step, number in told.intermediate_values.items()} == {
        step: repr(number) for step, number in reports.items()
    }


def test_a_missing_module_is_named_with_the_host(driver: ChildDriver) -> None:
    outcome = driver.run("from helper_that_is_not_here import add\ndef objective(trial): return add(1)\n").outcome
    assert (outcome.kind, outcome.type_name, outcome.loading) == ("failed", "builtins.ModuleNotFoundError", True)
    assert "helper_that_is_not_here" in outcome.text and socket.gethostname() in outcome.text


def test_out_of_memory_is_told_as_such(driver: ChildDriver) -> None:
    outcome = driver.run("def objective(trial):\n    raise MemoryError()\n").outcome
    assert (outcome.kind, outcome.memory["device"]) == ("oom", "host")


def test_large_attributes_and_errors_arrive_before_anybody_waits_for_the_end(driver: ChildDriver) -> None:
    """5 MB over a pipe must neither hang the child nor be lost."""
    story = driver.run("def objective(trial):\n    trial.set_user_attr('blob', 'x' * 5_000_000)\n    return 1.0\n")
    assert story.trial is not None and story.trial.user_attrs["blob"] == "x" * 5_000_000
    assert story.outcome.values == [1.0]
    story = driver.run("def objective(trial):\n    raise RuntimeError('y' * 5_000_000)\n")
    assert "left out" in story.outcome.text


def test_exit_handlers_and_threads_of_an_objective_get_their_turn(driver: ChildDriver) -> None:
    story = driver.run(
        "import atexit, threading, time\n"
        "def late():\n    time.sleep(0.2)\n    print('thread ended')\n"
        "def objective(trial):\n"
        "    atexit.register(print, 'exit handler ran')\n"
        "    threading.Thread(target=late).start()\n"
        "    return 1.0\n"
    )
    assert "thread ended\nexit handler ran\n" in story.log
    assert story.exited["exit_code"] == 0


def test_what_hangs_after_the_outcome_does_not_hold_the_memory(
    driver: ChildDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vrampool_worker.children.child.EXIT_S", 0.3)
    story = driver.run(
        "import threading, time\ndef objective(trial):\n"
        "    threading.Thread(target=time.sleep, args=(600,)).start()\n    return 1.0\n"
    )
    assert story.outcome.values == [1.0]
    assert story.exited["signal"] == 9


def test_an_outcome_is_read_before_the_end_that_overtakes_it(
    driver: ChildDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper's word and the child's last frame come over two sockets, and the loop may see either first."""
    select = driver.selector.select
    monkeypatch.setattr(driver.selector, "select", lambda timeout=None: select(timeout)[::-1])
    story = driver.spawn()
    driver.until(lambda: story.child.ready)
    driver.start(story, "def objective(trial): return 1.0")
    wait_for(lambda: not alive(story.child.keeper_pid))
    driver.until(lambda: story.child.gone)
    assert story.kinds == ["ready", "started", "outcome", "exited", "gone"]
