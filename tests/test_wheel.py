"""What is published: the wheel and the source archive hold what they must, and the wheel works by itself."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

from vrampool._version import __version__

ROOT = Path(__file__).parents[1]
PINS = ROOT / "requirements" / "constraints.txt"
PACKAGES = {"vrampool": ROOT / "pool", "vrampool_worker": ROOT / "workers"}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command without anything of this checkout in reach, and return what it printed."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "VRAMPOOL_"))}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """The folder with the wheel and the source archive of this checkout."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(built) -> Path:
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def clean_environment(wheel, tmp_path_factory) -> Path:
    """The `bin` folder of a new virtual environment with nothing but the wheel and what it requires."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, with_pip=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    run(*pip, "--constraint", PINS, wheel, cwd=folder)
    return folder / "bin"


def test_the_wheel_holds_every_file_of_both_packages_and_nothing_else(wheel):
    """The Lua scripts and `py.typed` too; no tests, and nothing under the names of the source folders."""
    with zipfile.ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {
        str(path.relative_to(folder))
        for package, folder in PACKAGES.items()
        for path in (folder / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert files == expected


def test_the_wheel_says_what_it_is(wheel):
    with zipfile.ZipFile(wheel) as archive:
        info = f"vrampool-{__version__}.dist-info"
        metadata = message_from_string(archive.read(f"{info}/METADATA").decode())
        entry_points = archive.read(f"{info}/entry_points.txt").decode()
        licence = archive.read(f"{info}/licenses/LICENSE").decode()
    assert (metadata["Name"], metadata["Version"]) == ("vrampool", __version__)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata.get_payload().strip() == (ROOT / "README.md").read_text().strip()
    assert "Copyright 2026 The vrampool authors" in licence
    assert "vrampool = vrampool.cli:main" in entry_points
    assert "worker = vrampool_worker.cli:worker" in entry_points


def test_the_source_archive_can_be_tested_and_built_again(built, tmp_path):
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    needed = ["LICENSE", "Makefile", "README.md", "CHANGELOG.md", "pyproject.toml", ".ci/run", "docs/structure.md"]
    needed += ["requirements/constraints.txt", "requirements/torch.sh", "tests/test_wheel.py", "examples/digits.py"]
    needed += [
        "deploy/helm/vrampool/values/gpu-24gb.yaml",
        "deploy/compose/.env.example",
        ".github/workflows/tests.yml",
    ]
    assert [name for name in needed if not (source / name).is_file()] == []
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "again", cwd=source)
    assert list((tmp_path / "again").glob("*.whl"))


def test_the_wheel_works_in_a_clean_environment(clean_environment, tmp_path):
    """The command answers, with the worker's part that comes through an entry point; no extra is needed for it."""
    answer = run(clean_environment / "vrampool", "--help", cwd=tmp_path)
    assert [word for word in ("run", "submit", "status", "worker") if word not in answer] == []
    assert __version__ in run(clean_environment / "vrampool", "--version", cwd=tmp_path)
    run(clean_environment / "vrampool", "worker", "--help", cwd=tmp_path)


def test_the_wheel_leaves_the_users_own_pool_and_workers_alone(clean_environment, tmp_path):
    """`pool` and `workers` are names that users give to their own modules."""
    for name in ("pool", "workers"):
        (tmp_path / f"{name}.py").write_text("MINE = True\n")
    program = (
        "import pool, vrampool, vrampool_worker, workers; assert pool.MINE and workers.MINE; print(vrampool.__file__)"
    )
    assert "site-packages" in run(clean_environment / "python", "-c", program, cwd=tmp_path)


def test_importing_the_package_loads_neither_torch_nor_nvml(clean_environment, tmp_path):
    """Extras stay extras: a coordinator's image has no torch."""
    program = "import sys, vrampool; vrampool.Pool; print(sorted({'torch', 'pynvml', 'matplotlib'} & set(sys.modules)))"
    assert run(clean_environment / "python", "-c", program, cwd=tmp_path).strip() == "[]"
