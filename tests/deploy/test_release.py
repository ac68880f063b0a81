"""A release: one version everywhere, and a wheel that runs where nothing else is, with pipx or without."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from support.deploying import DEPLOY, ROOT, program, run

from vrampool._version import __version__


def test_the_version_is_written_in_one_place_and_all_else_follows():
    """Where another file must repeat it, it is compared here."""
    name = re.escape(__version__)
    told = {"CHANGELOG.md", "pool/vrampool/_version.py", "deploy/helm/vrampool/Chart.yaml"}
    folders = [ROOT / "pool", ROOT / "workers", DEPLOY, ROOT / ".github", ROOT / "docs"]
    files = [*ROOT.glob("*.md"), ROOT / "pyproject.toml", ROOT / "Makefile"]
    binary = {".pyc", ".png", ".gif"}
    files += [path for folder in folders for path in folder.rglob("*") if path.is_file() and path.suffix not in binary]
    found = {
        str(path.relative_to(ROOT))
        for path in files
        if re.search(rf"vrampool\S*[:=@-]v?{name}\b|[vV]ersion\S*\s*[:=]\s*\"?{name}\b|\[{name}\]", path.read_text())
    }
    assert found - told == set()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    done = run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder)
    assert done.returncode == 0, done.stdout
    (path,) = folder.glob("*.whl")
    return path


def clean() -> dict[str, str]:
    """Variables that hold nothing of this checkout, and the pinned versions for pip."""
    return {
        **{name: "" for name in os.environ if name.startswith(("PYTHONPATH", "VRAMPOOL_"))},
        "PIP_CONSTRAINT": str(ROOT / "requirements" / "constraints.txt"),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


def is_well(text: str) -> None:
    """Read `vrampool doctor --json`: everything that a pool on a machine without a GPU needs works."""
    report = json.loads(text.splitlines()[-1])
    assert report["ok"], report
    assert {"system", "redis", "storage"} <= {check["name"] for check in report["checks"]}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_wheel_runs_with_pipx(wheel, tmp_path):
    command = [program("pipx"), "run", "--spec", str(wheel), "vrampool"]
    env = {**os.environ, "PIPX_HOME": str(tmp_path / "pipx"), "PIPX_BIN_DIR": str(tmp_path / "bin"), **clean()}
    env = {name: value for name, value in env.items() if value}
    done = run_long(*command, "--version", cwd=tmp_path, env=env)
    assert f"version {__version__}" in done
    is_well(
        run_long(*command, "doctor", "--gpu", "cpu", "--json", "--state-dir", tmp_path / "s", cwd=tmp_path, env=env)
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_wheel_runs_in_a_new_virtual_environment(wheel, tmp_path):
    """What pipx does, without pipx."""
    folder = tmp_path / "clean"
    venv.create(folder, with_pip=True)
    env = {name: value for name, value in {**os.environ, **clean()}.items() if value}
    run_long(folder / "bin" / "python", "-m", "pip", "install", "-qq", wheel, cwd=tmp_path, env=env)
    command = folder / "bin" / "vrampool"
    is_well(run_long(command, "doctor", "--gpu", "cpu", "--json", "--state-dir", tmp_path / "s", cwd=tmp_path, env=env))


def run_long(*command: str | Path, cwd: Path, env: dict[str, str]) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout
