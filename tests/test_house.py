"""The house itself: what its own files promise each other."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from vrampool import messages
from vrampool._version import __version__

ROOT = Path(__file__).parents[1]
SOURCES = [ROOT / "pool", ROOT / "workers"]
PYTHON_FILES = sorted(
    path
    for folder in [*SOURCES, ROOT / "tests", ROOT / "examples", ROOT / "benchmarks"]
    for path in folder.rglob("*.py")
    if "__pycache__" not in path.parts
)
TEST_FILES = [path for path in PYTHON_FILES if path.is_relative_to(ROOT / "tests")]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
MAKE_TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
PROMISED_TARGETS = ["demo", "test", "check", "test-slow", "test-gpu", "bench", "clean"]


def named(paths):
    return pytest.mark.parametrize("path", paths, ids=lambda path: str(path.relative_to(ROOT)))


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=100)


def test_the_contracts_between_the_modules_are_kept(tmp_path):
    done = run(str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--cache-dir", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dotted_names_in_messages_lead_somewhere():
    """They are plain text to the control plane, which never imports the data plane: nothing else would notice."""
    module, _, function = messages.ENTRY_POINT.rpartition(".")
    program = f"import importlib; assert callable(getattr(importlib.import_module({module!r}), {function!r}))"
    done = run(sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr
    child = find_spec(f"{messages.CHILD_MODULE}.__main__")
    assert child is not None and child.origin is not None, f"{messages.CHILD_MODULE} does not exist"
    assert 'if __name__ == "__main__":' in Path(child.origin).read_text(), "it is started with `python -m`"


def test_the_source_folders_are_no_packages():
    """An `__init__.py` there would make every module importable twice, under two names."""
    assert [folder.name for folder in SOURCES if (folder / "__init__.py").exists()] == []


@named(PYTHON_FILES)
def test_no_file_is_longer_than_400_lines(path):
    length = len(path.read_text().splitlines())
    assert length <= 400


def sleeps(tree: ast.AST) -> Iterator[tuple[ast.Call, list[ast.AST]]]:
    """Yield each call of `sleep` with the nodes it lies in, the outermost first."""

    def walk(node: ast.AST, parents: list[ast.AST]) -> Iterator[tuple[ast.Call, list[ast.AST]]]:
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "sleep":
            yield node, parents
        for child in ast.iter_child_nodes(node):
            yield from walk(child, [*parents, node])

    return walk(tree, [])


def is_objective(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and any(argument.arg == "trial" for argument in node.args.args)


@named(TEST_FILES)
def test_no_test_sleeps(path):
    """A test waits for a condition with a deadline. Only the helper that looks again and again may pause.

    An objective may take time: then its length is what the test is about.
    """
    polls = path.is_relative_to(ROOT / "tests" / "support")
    found = [
        f"line {call.lineno}"
        for call, parents in sleeps(ast.parse(path.read_text()))
        if not any(is_objective(parent) for parent in parents)
        and not (polls and any(isinstance(parent, ast.While) for parent in parents))
    ]
    assert found == []


@pytest.mark.parametrize("target", PROMISED_TARGETS)
def test_the_makefile_has_the_promised_target(target):
    assert target in MAKE_TARGETS
    done = run("make", "--dry-run", target)
    assert done.returncode == 0, done.stderr


@named(PAGES)
def test_pages_name_only_make_targets_that_exist(path):
    named_there = set(re.findall(r"(?:`|^    )make ([a-z-]+)", path.read_text(), flags=re.MULTILINE))
    assert named_there - MAKE_TARGETS == set()


@named(PAGES)
def test_links_between_pages_lead_somewhere(path):
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", path.read_text())
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_the_pinned_versions_are_allowed_by_the_package():
    """They are what tests and demo run with: each requirement that the Makefile installs has one, within its range."""
    lines = (ROOT / "requirements" / "constraints.txt").read_text().splitlines()
    pins = {
        canonicalize_name(name): version
        for name, _, version in (line.partition("==") for line in lines if not line.startswith("#"))
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras, groups = project["project"]["optional-dependencies"], project["dependency-groups"]
    wanted = [
        *project["project"]["dependencies"],
        *chain.from_iterable(extras[name] for name in ("torch", "viz", "postgres", "dashboard")),
        *chain.from_iterable(groups[name] for name in ("test", "check")),
    ]
    outside = []
    for requirement in map(Requirement, wanted):
        pin = pins.get(canonicalize_name(requirement.name))
        if pin is None or not requirement.specifier.contains(pin):
            outside.append(f"{requirement} pinned to {pin}")
    assert outside == []


def test_the_changelog_tells_of_this_version():
    assert re.search(rf"^## \[{re.escape(__version__)}\]", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)


def test_every_package_is_marked_as_typed():
    assert [path.name for folder in SOURCES for path in folder.glob("*/") if not (path / "py.typed").exists()] == []


def test_ci_runs_the_commands_that_people_run():
    script = (ROOT / ".ci" / "run").read_text()
    assert [step for step in ("make test", "make check", "tests/test_wheel.py") if step not in script] == []
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111, "executable"
