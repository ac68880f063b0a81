"""Small manners of YAML files and shell scripts, by their linters."""

from __future__ import annotations

import pytest
from support.deploying import CHART, DEPLOY, ROOT, has_passed, program, run

YAML = [
    CHART / "Chart.yaml",
    CHART / "values.yaml",
    CHART / "values",
    DEPLOY / "compose",
    ROOT / ".github" / "workflows",
]
SCRIPTS = [
    *sorted((ROOT / "requirements").glob("*.sh")),
    *sorted((DEPLOY / "slurm").glob("*.sbatch")),
    ROOT / ".ci" / "run",
]


def test_yaml_is_tidy():
    rules = "{extends: relaxed, rules: {line-length: {max: 130}}}"
    has_passed(run(program("yamllint"), "--strict", "--config-data", rules, *YAML))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_finds_nothing(path):
    has_passed(run(program("shellcheck"), path))
