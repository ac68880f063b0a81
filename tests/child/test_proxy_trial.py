"""The proxy trial behaves as Optuna's own: the same script is run on both, and what they do is compared."""

from __future__ import annotations

import json
import math
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import optuna
import pytest
from support.child_driver import ChildDriver

from vrampool_worker.child.channel import CallError, rebuild_error
from vrampool_worker.child.proxy_trial import ProxyTrial, register_with_optuna
from vrampool_worker.trial_server import TrialServer, describe_error

register_with_optuna()


def proxy_of(study: optuna.Study, trial: optuna.Trial) -> ProxyTrial:
    """Return a proxy whose calls go through JSON to the real trial, as they do through a socket."""
    server = TrialServer(study, trial)

    def call(name: str, /, **arguments: Any) -> Any:
        args = json.loads(json.dumps(arguments))
        try:
            return json.loads(json.dumps(server.handle(name, args)))
        except Exception as error:
            raise rebuild_error(json.loads(json.dumps(describe_error(error)))) from None

    proxy = ProxyTrial(call, json.loads(json.dumps(server.snapshot())))
    proxy.server = server  # type: ignore[attr-defined]  # so that a test can look behind it
    return proxy


def study_for_test(**options: Any) -> optuna.Study:
    return optuna.create_study(
        storage=optuna.storages.InMemoryStorage(), sampler=optuna.samplers.RandomSampler(seed=3), **options
    )


Script = Callable[[Any], Any]


Seen = tuple[Any, list[str], optuna.trial.FrozenTrial]


def twice(params: dict[str, Any], script: Script, **options: Any) -> list[Seen]:
    """Run a script on a real and on a proxy trial; return result or error, warnings and the stored trial of each."""
    found = []
    for make in (lambda study, trial: trial, proxy_of):
        study = study_for_test(**options)
        study.enqueue_trial(params)
        trial = study.ask()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                result: Any = script(make(study, trial))
            except Exception as error:
                result = (type(error), str(error).partition(" (parameter")[0])
        said = [item.category.__name__ for item in caught]
        found.append((result, said, study.trials[0]))
    return found


@pytest.mark.parametrize(
    "script",
    [
        lambda t: t.suggest_float("x", 0, 1),
        lambda t: t.suggest_float("x", 1e-5, 1e-1, log=True),
        lambda t: t.suggest_float("x", 0, 1, step=0.25),
        lambda t: t.suggest_float("x", 0, 1, step=0.3),
        lambda t: t.suggest_float("x", np.float32(0), np.int64(1)),
        lambda t: t.suggest_int("n", 1, 10),
        lambda t: t.suggest_int("n", 1, 1024, log=True),
        lambda t: t.suggest_int("n", 0, 10, step=5),
        lambda t: t.suggest_int("n", 3, 3),
        lambda t: t.suggest_categorical("c", ["a", 1, 2.5, None, True]),
        lambda t: t.suggest_categorical("c", ("only",)),
        lambda t: t.suggest_uniform("x", 0, 1),
        lambda t: t.suggest_loguniform("x", 1, 10),
        lambda t: t.suggest_discrete_uniform("x", 0, 1, 0.5),
        lambda t: [t.suggest_float("x", 0, 1), t.suggest_float("x", 0, 1), t.params],
        lambda t: [t.suggest_float("x", 0, 1), t.suggest_float("x", 0, 2)],
        lambda t: [t.suggest_int("x", 0, 4), t.suggest_int("x", 0, 8, step=2)],
        lambda t: [t.suggest_float("x", 0, 1), t.suggest_int("x", 0, 2)],
        lambda t: [t.suggest_categorical("c", ["a", "b"]), t.suggest_categorical("c", ["a", "b", "c"])],
        lambda t: t.suggest_float("x", 1, 0),
        lambda t: t.suggest_float("x", 0, 1, step=-1),
        lambda t: t.suggest_float("x", 0, 1, step=0.1, log=True),
        lambda t: t.suggest_float("x", -1, 1, log=True),
        lambda t: t.suggest_int("x", 5, 1),
        lambda t: t.suggest_categorical("c", []),
        lambda t: (t.report(0.5, 1), t.report(math.nan, 2), t.report(np.float32(1.5), np.int64(3)), t.should_prune()),
        lambda t: (t.report(0.5, 1), t.report(0.6, 1)),
        lambda t: t.report("x", 1),
        lambda t: t.report(None, 1),
        lambda t: t.report(0.5, "one"),
        lambda t: t.report(0.5, None),
        lambda t: t.report(0.5, -1),
        lambda t: (t.set_user_attr("a", {"b": [1, None, "x"]}), t.user_attrs),
        lambda t: (t.set_user_attr("a", 1), t.set_user_attr("a", 2), t.user_attrs),
        lambda t: (t.set_user_attr("acc", np.float64(0.5)), t.user_attrs),
        lambda t: (t.set_constraint("size", 2.5), t.constraints),
        lambda t: (t.set_constraint("size", 1), t.set_constraint("size", 2), t.constraints),
        lambda t: t.set_constraint("size", math.nan),
        lambda t: t.set_constraint("size", "big"),
        lambda t: (t.suggest_int("n", 0, 10, step=3), t.suggest_categorical("c", [1, "b"]), t.distributions),
        lambda t: (t.number, t.params, t.distributions, t.user_attrs, t.constraints, t.relative_params),
        lambda t: (t.study.directions, t.study.direction, t.study.user_attrs, t.study.metric_names),
        lambda t: t.study.best_value,
        lambda t: (type(t.study.sampler), type(t.study.pruner)),
        lambda t: [trial.state for trial in t.study.trials],
        lambda t: [trial.number for trial in t.study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))],
        lambda t: (isinstance(t, optuna.trial.BaseTrial), isinstance(t, optuna.Trial)),
    ],
)
def test_it_does_what_optunas_own_trial_does(script: Script) -> None:
    """Results, classes and texts of errors, warnings and what is stored are the same."""
    params = {"x": 0.5, "n": 3, "c": "only"}
    (result, said, stored), (proxied, proxy_said, proxy_stored) = twice(params, script)
    assert repr(proxied) == repr(result)
    assert proxy_said == said
    for name in ("params", "distributions", "user_attrs", "constraints"):
        assert getattr(proxy_stored, name) == getattr(stored, name)
    assert repr(proxy_stored.intermediate_values) == repr(stored.intermediate_values)


@pytest.mark.parametrize(
    "script",
    [
        lambda t: t.report(1.0, 1),
        lambda t: t.should_prune(),
        lambda t: t.study.direction,
        lambda t: t.study.best_trial,
        lambda t: t.study.best_trials,
        lambda t: t.study.directions,
    ],
)
def test_several_objectives_are_refused_where_optuna_refuses_them(script: Script) -> None:
    (result, _, _), (proxied, _, _) = twice({}, script, directions=["minimize", "maximize"])
    assert repr(proxied)[:60] == repr(result)[:60]


def test_a_bound_that_is_no_number_is_a_type_error() -> None:
    study = study_for_test()
    with pytest.raises(TypeError, match="'low'"):
        proxy_of(study, study.ask()).suggest_float("x", "low", 1)  # type: ignore[arg-type]


def test_a_step_or_constraint_given_twice_is_warned_of() -> None:
    study = study_for_test()
    proxy = proxy_of(study, study.ask())
    proxy.report(1.0, 0)
    with pytest.warns(UserWarning, match="already reported"):
        proxy.report(2.0, 0)
    proxy.set_constraint("size", 1.0)
    with pytest.warns(UserWarning, match="already set"):
        proxy.set_constraint("size", 2.0)


def test_finished_trials_are_optunas_own_records() -> None:
    study = study_for_test(direction="maximize")

    def objective(trial: optuna.Trial) -> float:
        trial.report(0.1, 3)
        trial.set_user_attr("note", {"a": [1]})
        trial.set_constraint("size", -1.0)
        word = trial.suggest_categorical("c", ["a", "bb"])
        return trial.suggest_float("x", 0, 1) + trial.suggest_int("n", 1, 8, log=True) + len(word)

    study.optimize(objective, n_trials=5)
    proxy = proxy_of(study, study.ask())
    assert proxy.study.best_trial == study.best_trial
    assert proxy.study.best_value == study.best_value
    assert proxy.study.best_params == study.best_params
    assert proxy.study.trials[:5] == study.trials[:5]
    assert proxy.study.best_trials == study.best_trials


def test_a_choice_comes_back_as_the_objectives_own_object() -> None:
    study = study_for_test()
    choices = [("adam", 0.9), ("sgd", 0.0)]
    proxy = proxy_of(study, study.ask())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna would rather have plain choices
        chosen = proxy.suggest_categorical("optimizer", choices)
    assert any(chosen is choice for choice in choices)
    assert proxy.params == {"optimizer": chosen}


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (np.float32(0.5), "float32"),
        (np.int64(3), "int64"),
        ({1, 2}, "set"),
        (np.arange(3), "ndarray"),
        ([object()], "list"),
    ],
)
def test_an_attribute_that_is_no_json_fails_at_the_call_and_is_named(value: object, kind: str) -> None:
    study = study_for_test()
    proxy = proxy_of(study, study.ask())
    with pytest.raises(TypeError, match=f"'acc'.*{kind}"):
        proxy.set_user_attr("acc", value)
    assert study.trials[0].user_attrs == {}


def test_choices_that_are_no_json_are_named() -> None:
    study = study_for_test()
    with pytest.raises(TypeError, match=r"'act'.*function"):
        proxy_of(study, study.ask()).suggest_categorical("act", [len, lambda: None])


def test_the_pools_own_names_cannot_be_written() -> None:
    """Neither through the proxy, nor by a child that writes the frame itself."""
    study = study_for_test()
    proxy = proxy_of(study, study.ask())
    with pytest.raises(ValueError, match="reserved"):
        proxy.set_user_attr("vrampool:mark", {})
    with pytest.raises(ValueError, match="reserved"):
        proxy.set_constraint("vrampool:over_gib", -1.0)
    server = proxy.server  # type: ignore[attr-defined]
    for name, args in (
        ("set_user_attr", {"key": "vrampool:mark", "value": {}}),
        ("set_constraint", {"key": "vrampool:over_gib", "value": -1.0}),
    ):
        with pytest.raises(ValueError, match="reserved"):
            server.handle(name, args)
    with pytest.raises(AttributeError):
        server.handle("__init__", {})


def test_changed_choices_fail_with_the_name_of_the_parameter() -> None:
    study = study_for_test()
    study.optimize(lambda trial: float(trial.suggest_categorical("bs", [64, 128])), n_trials=1)
    storage = optuna.storages.InMemoryStorage()
    study = optuna.create_study(storage=storage)
    study.optimize(lambda trial: float(trial.suggest_categorical("bs", [64, 128])), n_trials=1)
    proxy = proxy_of(study, study.ask())
    with pytest.raises(ValueError, match=r"does not support dynamic value space.*'bs'"):
        proxy.suggest_categorical("bs", [64, 128, 256])


def test_the_study_can_be_stopped_and_not_changed() -> None:
    study = study_for_test()
    proxy = proxy_of(study, study.ask())
    proxy.study.stop()
    assert proxy.server.stop_requested  # type: ignore[attr-defined]
    for change in (
        lambda: proxy.study.set_user_attr("a", 1),
        lambda: proxy.study.enqueue_trial({"x": 1}),
        lambda: proxy.study.ask(),
        lambda: proxy.study.optimize(lambda trial: 1.0),
    ):
        with pytest.raises(RuntimeError, match="where the study is submitted"):
            change()


def test_it_has_no_storage_and_does_not_travel() -> None:
    study = study_for_test()
    proxy = proxy_of(study, study.ask())
    assert not hasattr(proxy, "storage")
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(proxy)
    assert "trial 0" in repr(proxy)


def test_it_has_every_public_member_of_optunas_trial() -> None:
    study = study_for_test()
    real = study.ask()
    proxy = proxy_of(study, real)
    members = {name for name in dir(real) if not name.startswith("_")}
    missing = {name for name in members if not hasattr(type(proxy), name) and name not in vars(proxy)}
    assert missing == {"relative_search_space"}  # a sampler's own note, which no objective reads


def test_a_trial_that_was_ended_from_outside_says_so_to_the_worker() -> None:
    study = study_for_test()
    trial = study.ask()
    server = TrialServer(study, trial)
    study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
    with pytest.raises(optuna.exceptions.UpdateFinishedTrialError):
        server.handle("report", {"value": 1.0, "step": 0})
    assert server.finished_elsewhere


def test_a_write_that_got_lost_is_read_back_before_it_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit succeeded and its answer got lost: sampling once more would give another value than is stored."""
    study = study_for_test()
    trial = study.ask()
    server = TrialServer(study, trial)
    write = type(study._storage).set_trial_param

    def lose_the_answer(*arguments: Any) -> None:
        write(*arguments)
        raise optuna.exceptions.StorageInternalError("connection lost")

    asked = {"name": "x", "low": 0.0, "high": 1.0, "step": None, "log": False}
    with monkeypatch.context() as patch:
        patch.setattr(type(study._storage), "set_trial_param", lose_the_answer)
        with pytest.raises(optuna.exceptions.StorageInternalError):
            server.handle("suggest_float", asked)
    stored = study.trials[0].params["x"]
    assert server.handle("suggest_float", asked)["value"] == stored


def test_errors_are_made_again_as_the_class_they_were() -> None:
    assert isinstance(rebuild_error(describe_error(ValueError("x"))), ValueError)
    assert isinstance(rebuild_error(describe_error(KeyError("x"))), KeyError)
    assert isinstance(
        rebuild_error(describe_error(optuna.exceptions.UpdateFinishedTrialError("x"))),
        optuna.exceptions.UpdateFinishedTrialError,
    )
    unknown = rebuild_error({"type": "Odd", "module": "nowhere", "text": "text"})
    assert isinstance(unknown, CallError) and str(unknown) == "Odd: text"
    assert isinstance(rebuild_error({"type": "SystemExit", "module": "builtins", "text": "0"}), CallError)


# ---- in a real child ---------------------------------------------------------------------------------


def test_an_objective_without_optuna_never_loads_it(driver: ChildDriver) -> None:
    """Nor torch, nor a database's or Redis's client; what an objective does is done without them."""
    story = driver.run(
        "import sys\ndef objective(trial):\n    trial.suggest_float('x', 0, 1)\n    trial.report(1.0, 0)\n"
        "    trial.should_prune()\n    trial.set_user_attr('a', 1)\n    trial.study.best_trials\n"
        "    trial.set_user_attr('loaded', sorted(m for m in sys.modules if '.' not in m))\n    return 1.0\n"
    )
    assert story.trial is not None
    loaded = set(story.trial.user_attrs["loaded"])
    assert (
        loaded & {"optuna", "torch", "numpy", "redis", "rq", "sqlalchemy", "pynvml", "psutil", "cloudpickle"} == set()
    )


def test_it_is_a_trial_to_whoever_imports_optuna(driver: ChildDriver) -> None:
    story = driver.run(
        "def objective(trial):\n    import optuna\n    assert isinstance(trial, optuna.trial.BaseTrial)\n"
        "    assert isinstance(trial, optuna.Trial)\n"
        "    assert type(trial.study.pruner) is optuna.pruners.NopPruner\n"
        "    assert isinstance(trial.study.sampler, optuna.samplers.RandomSampler)\n"
        "    return float(trial.study.trials[0].number)\n",
        study=optuna.create_study(pruner=optuna.pruners.NopPruner(), sampler=optuna.samplers.RandomSampler()),
    )
    assert story.outcome.values == [0.0], str(story)


def test_a_forked_process_cannot_use_the_trial(driver: ChildDriver) -> None:
    story = driver.run(
        "import os\ndef objective(trial):\n    pid = os.fork()\n    if pid == 0:\n        code = 1\n        try:\n"
        "            trial.report(1.0, 0)\n        except RuntimeError as error:\n"
        "            code = 7 if 'only in the process' in str(error) else 2\n"
        "        finally:\n            os._exit(code)\n"
        "    return float(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    assert story.outcome.values == [7.0]
    assert story.calls == []


def test_calls_of_several_threads_get_their_own_answers(driver: ChildDriver) -> None:
    story = driver.run(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "def ask(trial, n):\n    return all(trial.suggest_int(f'p{n}_{k}', n, n) == n for k in range(20))\n"
        "def objective(trial):\n    with ThreadPoolExecutor(8) as pool:\n"
        "        return float(all(pool.map(ask, [trial] * 8, range(8))))\n"
    )
    assert story.outcome.values == [1.0]
    assert len(story.calls) == 160
