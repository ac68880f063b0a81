"""What careful people write by hand: threads whose objective runs the real one in a fresh process, with a time limit.

Parameters are drawn by the parent, so the search space must be known beforehand and nothing can be pruned.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.peers.driving import Asked, create_study, finish, states
from benchmarks.peers.work import Drawn, objective

SPAWN = multiprocessing.get_context("spawn")


def child(answers: Connection, params: dict[str, Any], number: int) -> None:
    """What a trial's process does."""
    try:
        answers.send((objective(Drawn(params, number)), ""))
    except Exception as error:
        answers.send((None, f"{type(error).__name__}: {error}"))


def in_a_process(trial: Any, limit_s: float | None) -> float:
    """Run one trial in a process of its own; raise when that dies, fails, or takes too long."""
    params = {
        "x": trial.suggest_float("x", -10.0, 10.0),
        "n": trial.suggest_int("n", 1, 8),
        "kind": trial.suggest_categorical("kind", ["a", "b", "c"]),
    }
    answers, theirs = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=child, args=(theirs, params, trial.number))
    process.start()
    theirs.close()
    try:
        if not answers.poll(limit_s):
            raise TimeoutError(f"took more than {limit_s} s")
        value, error = answers.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"its process ended with {process.exitcode}") from None
    finally:
        process.join(0.5)
        process.kill()
        process.join()
        answers.close()
    if error:
        raise RuntimeError(error)
    return float(value)


def main() -> None:
    """Optimize, in memory."""
    asked = Asked.read()
    study = create_study()
    study.optimize(
        lambda trial: in_a_process(trial, asked.limit_s),
        n_trials=asked.trials,
        n_jobs=asked.at_once,
        catch=(Exception,),
    )
    finish(asked, states(study))


if __name__ == "__main__":
    main()
