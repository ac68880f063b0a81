"""An objective is checked before anything is created, and the error says what to do about it."""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vrampool.errors import ObjectiveError
from vrampool.objectives import load, resolve, source_hash


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of the user's on his path, which says on stdout when it is imported."""
    folder = tmp_path / "lib"
    (folder / "their_package").mkdir(parents=True)
    (folder / "their_package" / "__init__.py").write_text("print('package imported')\n")
    (folder / "their_package" / "training.py").write_text(
        "print('module imported')\nimport functools\n"
        "def objective(trial): return 1.0\n"
        "async def slowly(trial): return 1.0\n"
        "def two(trial, data): return 1.0\n"
        "def with_default(trial, data=None): return 1.0\n"
        "def keyword(trial, *, data): return 1.0\n"
        "def none(): return 1.0\n"
        "partly = functools.partial(two, data=1)\n"
        "value = 3\n"
        "class Holder:\n    def __call__(self, trial): return 1.0\n"
        "    @staticmethod\n    def inner(trial): return 2.0\n"
        "instance = Holder()\n"
        "try:\n    import nothing_like_this\nexcept ImportError:\n    def fallback(trial): return 1.0\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    for name in ("their_package", "their_package.training"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield folder
    for name in ("their_package", "their_package.training"):
        sys.modules.pop(name, None)


def test_a_module_of_the_folder_one_stands_in_is_found_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command's own path does not hold it."""
    (tmp_path / "stands_here.py").write_text("def objective(trial): return 1.0\n")
    monkeypatch.chdir(tmp_path)
    reference, _ = resolve("stands_here:objective")
    assert reference.sys_path[-1] == str(tmp_path)
    before = list(sys.path)
    try:
        assert load(reference, None)(None) == 1.0
    finally:
        sys.path[:] = before
        sys.modules.pop("stands_here", None)


def test_a_file_and_a_name_are_an_import_path(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file is read and not run: importing it may take seconds, and it is the worker's to do."""
    path = package / "their_package" / "training.py"
    reference, bundle = resolve(f"{path}:objective", workdir=package)
    assert bundle is None
    assert (reference.kind, reference.target, reference.workdir) == ("import", f"{path}:objective", str(package))
    assert reference.source_sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert reference.sys_path[0] == str(path.parent)
    assert capsys.readouterr().out == ""


def test_a_module_is_found_without_importing_it(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reference, bundle = resolve("their_package.training:objective")
    assert bundle is None and reference.target == "their_package.training:objective"
    assert str(package) in reference.sys_path
    assert reference.source_sha256 == source_hash(reference.target, reference.sys_path)
    assert capsys.readouterr().out == ""
    assert "their_package" not in sys.modules


@pytest.mark.parametrize("name", ["with_default", "fallback", "Holder.inner", "partly", "instance"])
def test_whatever_can_be_called_with_a_trial_will_do(package: Path, name: str) -> None:
    reference, _ = resolve(f"their_package.training:{name}")
    assert load(reference, None)(None) in (1.0, 2.0)


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("their_package.training", "must be 'FILE.py:function'"),
        ("their_package.training:", "must be 'FILE.py:function'"),
        ("their_package.trainin:objective", "no module 'their_package.trainin'"),
        ("no_such_package.x:objective", "no module 'no_such_package.x'"),
        ("their-package:objective", "not the name of a module"),
        ("their_package.training:objectve", "did you mean 'objective'?"),
        ("their_package.training:zzz", "it has objective, two"),
        ("their_package.training:slowly", "asynchronous"),
        ("their_package.training:two", r"must take one trial, but its signature is \(trial, data\)"),
        ("their_package.training:none", "must take one trial"),
        ("their_package.training:keyword", "must take one trial"),
        ("their_package.training:value", "is int and cannot be called"),
        ("/nowhere/file.py:objective", "no file /nowhere/file.py"),
    ],
)
def test_a_wrong_name_is_refused_with_what_is_wrong(package: Path, target: str, text: str) -> None:
    with pytest.raises(ObjectiveError, match=text):
        resolve(target)


def test_a_file_that_is_no_python_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def objective(trial)\n    return 1\n")
    with pytest.raises(ObjectiveError, match=r"not valid Python.*line 1"):
        resolve(f"{tmp_path / 'bad.py'}:objective")


def test_an_import_that_raises_is_told_at_submit(tmp_path: Path) -> None:
    """Only where the source alone cannot tell what the name is."""
    (tmp_path / "raising.py").write_text("from helper_not_there import objective\n")
    with pytest.raises(ObjectiveError, match=r"ModuleNotFoundError.*helper_not_there"):
        resolve(f"{tmp_path / 'raising.py'}:objective")


def test_a_function_of_a_module_travels_by_name(package: Path) -> None:
    training = importlib.import_module("their_package.training")
    reference, bundle = resolve(training.objective)
    assert bundle is None and reference.target == "their_package.training:objective"
    assert reference.source_sha256 is not None


def test_a_function_that_its_module_has_replaced_is_bundled(package: Path) -> None:
    training = importlib.import_module("their_package.training")
    old = training.objective
    training.objective = training.with_default
    reference, bundle = resolve(old)
    assert reference.kind == "bundle" and bundle is not None


def test_lambdas_closures_and_objects_are_bundled() -> None:
    factor = 3.0

    def closure(trial: Any) -> float:
        return factor

    class Objective:
        def __init__(self, value: float) -> None:
            self.value = value

        def __call__(self, trial: Any) -> float:
            return self.value

    for objective, value in (
        (lambda trial: 2.0, 2.0),
        (closure, 3.0),
        (Objective(4.0), 4.0),
        (Objective(5.0).__call__, 5.0),
        (functools.partial(lambda trial, value: value, value=6.0), 6.0),
    ):
        reference, bundle = resolve(objective)
        assert reference.kind == "bundle" and bundle is not None
        assert reference.bundle_sha256 == hashlib.sha256(bundle).hexdigest()
        assert reference.python == f"{sys.version_info.major}.{sys.version_info.minor}"
        assert load(reference, bundle)(None) == value


DATA = np.zeros(2_000_000)
LOCK = threading.Lock()


def uses_data() -> float:
    return float(DATA.sum())


def test_a_captured_data_set_is_refused_with_its_name_and_sizes() -> None:
    data = np.zeros(1_000_000)

    def objective(trial: Any) -> float:
        return float(data.sum())

    with pytest.raises(
        ObjectiveError, match=r"takes 7\.6 MiB bundled, over the limit of 1\.0 MiB; .*'data' with 7\.6 MiB"
    ):
        resolve(objective, bundle_limit_bytes=1024**2)


def test_a_captured_lock_is_refused_with_its_name() -> None:
    lock = threading.Lock()
    held = {"inside": lock}

    def helper() -> None:
        with lock:
            pass

    def objective(trial: Any) -> float:
        helper()
        return 1.0

    with pytest.raises(ObjectiveError, match=r"refers to 'lock', which cannot be sent.*_thread.lock"):
        resolve(objective)
    with pytest.raises(ObjectiveError, match="refers to 'held'"):
        resolve(lambda trial: len(held))


def test_an_object_that_holds_what_cannot_travel_names_its_attribute() -> None:
    class Objective:
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def __call__(self, trial: Any) -> float:
            return 1.0

    with pytest.raises(ObjectiveError, match=r"'self\.lock'"):
        resolve(Objective())


def test_what_is_not_callable_with_a_trial_is_refused() -> None:
    async def slowly(trial: Any) -> float:
        return 1.0

    def yields(trial: Any) -> Any:
        yield 1.0

    class Slow:
        async def __call__(self, trial: Any) -> float:
            return 1.0

    for objective, text in (
        (slowly, "asynchronous"),
        (functools.partial(slowly), "asynchronous"),
        (Slow(), "asynchronous"),
        (yields, "generator"),
        (3, "int and cannot be called"),
        (lambda: 1.0, "must take one trial"),
        (lambda trial, data: 1.0, "must take one trial"),
    ):
        with pytest.raises(ObjectiveError, match=text):
            resolve(objective)  # type: ignore[arg-type]


def test_a_pool_that_takes_no_bundles_says_so() -> None:
    with pytest.raises(ObjectiveError, match="takes no bundles"):
        resolve(lambda trial: 1.0, allow_bundles=False)


def test_a_worker_can_hash_source_without_importing_it(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = source_hash("their_package.training:objective", [str(package)])
    assert before is not None
    with (package / "their_package" / "training.py").open("a") as file:
        file.write("# edited\n")
    assert source_hash("their_package.training:objective", [str(package)]) not in (before, None)
    assert source_hash("their_package.gone:objective", [str(package)]) is None
    assert source_hash(str(package / "gone.py") + ":objective") is None
    assert capsys.readouterr().out == ""


def test_installed_packages_are_not_put_in_front_of_a_workers_own() -> None:
    reference, _ = resolve(lambda trial: 1.0)
    assert not any("site-packages" in entry for entry in reference.sys_path)
    assert os.path.dirname(os.__file__) not in reference.sys_path
