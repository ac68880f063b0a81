"""One table of checks over Optuna's own trial, its FixedTrial, and the proxy in a real child over its real channel."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.samplers import RandomSampler
from parity import trial_running
from parity.samplers import AtSecondStep
from parity.trial_checks import CHECKS, GIVEN, Check, Relative
from parity.trial_running import SETUPS
from support.child_driver import ChildDriver

PAGE = Path(__file__).parents[2] / "docs" / "parity.md"
KINDS = ("Trial", "FixedTrial", "ProxyTrial")
Found = dict[tuple[str, str], dict[str, str]]


class Always(AtSecondStep):
    def prune(self, study: Any, trial: Any) -> bool:
        return True


def study_of(setup: str) -> optuna.Study:
    options: dict[str, Any] = {"sampler": RandomSampler(seed=1), "pruner": optuna.pruners.NopPruner()}
    if setup == "pruner":
        options["pruner"] = Always()
    if setup == "several":
        options["directions"] = ["minimize", "maximize"]
    if setup == "relative":
        options["sampler"] = Relative()
    study = optuna.create_study(**options)
    if setup == "given":
        study.enqueue_trial(GIVEN)
    return study


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Found]:
    """What the checks found, by class of trial and setup. Each setup is run once on each class."""
    results: Found = {}
    driver = ChildDriver(tmp_path_factory.mktemp("children"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for setup in SETUPS:
            results["Trial", setup] = trial_running.run_all(study_of(setup).ask(), setup, "Trial")
            results["FixedTrial", setup] = trial_running.run_all(optuna.trial.FixedTrial(GIVEN), setup, "FixedTrial")
            story = driver.run(getattr(trial_running, f"in_child_{setup}"), study=study_of(setup))
            assert story.trial is not None
            results["ProxyTrial", setup] = story.trial.user_attrs.get("found", {"": str(story)})
    yield results
    driver.close()


CASES = [(kind, item) for item in CHECKS for kind in KINDS if kind not in item.excused]


@pytest.mark.parametrize(("kind", "item"), CASES, ids=[f"{item.name}-{kind}" for kind, item in CASES])
def test_every_class_of_trial_passes(found: Found, kind: str, item: Check) -> None:
    assert found[kind, item.setup].get(item.name, f"was not run: {found[kind, item.setup]}") == ""


def test_the_proxy_is_excused_from_nothing_without_a_word() -> None:
    """Whatever of Optuna's own tests of trials does not apply to the proxy stands in the page, with its reason."""
    page = PAGE.read_text()
    for item in CHECKS:
        if "ProxyTrial" in item.excused:
            assert item.name in page
