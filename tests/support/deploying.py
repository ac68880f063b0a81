"""Tools that check what lies in deploy/. One that is not there costs a skip with its name, or, asked to, a failure."""

from __future__ import annotations

import functools
import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "vrampool"
ROWS = {path.stem: path for path in sorted((CHART / "values").glob("*.yaml"))}
#: In CI everything must be there: an empty set of checks would pass, too.
STRICT = os.environ.get("DEPLOY_CHECK") == "strict"
RELEASE, NAMESPACE = "search", "ml"

Document = dict[str, Any]


def absent(what: str) -> NoReturn:
    """Skip the test, for want of a tool."""
    text = f"{what} is not here: `make deploy-check` installs it where it can be had"
    if STRICT:
        pytest.fail(text)
    pytest.skip(text)


def program(name: str) -> str:
    """Return the path of a program: beside the interpreter, from npm, or from the system."""
    beside = Path(sys.executable).parent
    for path in (beside / name, beside.parent / "node" / "node_modules" / ".bin" / name):
        if path.exists():
            return str(path)
    return shutil.which(name) or absent(f"the program {name}")


def module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError:
        absent(f"the Python package {name}")


def run(*command: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; its output is kept together."""
    return subprocess.run(
        command,
        cwd=cwd,
        env=None if env is None else os.environ | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=100,
    )


def has_passed(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout


# ---- the chart -----------------------------------------------------------------------------------------


def values_of(row: str) -> Document:
    """Return what a value file of the chart says; "" is no file."""
    return yaml.safe_load(ROWS[row].read_text()) if row else {}


def render(values: Document) -> list[Document]:
    """Return the documents that the chart makes of these values.

    Raises:
        Exception: Helm refuses the values.
    """
    with module("helm_python").Chart.load(str(CHART)) as chart:
        files = chart.render(values, name=RELEASE, namespace=NAMESPACE)
    return [
        document
        for name, text in sorted(files.items())
        if not name.endswith(".txt")
        for document in yaml.safe_load_all(text)
        if document
    ]


@functools.cache
def _rendered(row: str) -> str:
    return yaml.safe_dump_all(render(values_of(row)))


def rendered(row: str) -> list[Document]:
    """Return the documents of a value file, made once."""
    return list(yaml.safe_load_all(_rendered(row)))


def of_kind(documents: list[Document], kind: str, component: str | None = None) -> list[Document]:
    found = [document for document in documents if document["kind"] == kind]
    if component is None:
        return found
    label = "app.kubernetes.io/component"
    return [document for document in found if document["metadata"].get("labels", {}).get(label) == component]


def one(documents: list[Document], kind: str, component: str | None = None) -> Document:
    (found,) = of_kind(documents, kind, component)
    return found


def pods_of(documents: list[Document]) -> list[Document]:
    """Return the pod templates of all workloads."""
    return [item["spec"]["template"] for item in documents if item["kind"] in ("Deployment", "StatefulSet")]


def container(template: Document) -> Document:
    (found,) = template["spec"]["containers"]
    return found


def environment(template: Document) -> dict[str, Any]:
    """Return a container's variables; one that is not given by value has the reference."""
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in container(template)["env"]}


def selects(selector: Document, labels: dict[str, str]) -> bool:
    """True when a label selector matches."""
    for expression in selector.get("matchExpressions", []):
        assert expression["operator"] == "In"
        if labels.get(expression["key"]) not in expression["values"]:
            return False
    return selector.get("matchLabels", {}).items() <= labels.items()


def with_row(row: str = "gpu-24gb", **pool: object) -> Document:
    """Return the values of a row with some of its pool's replaced."""
    values = values_of(row)
    values["workers"]["pools"][row] |= pool
    return values


def worker_pod(documents: list[Document]) -> Document:
    return one(documents, "Deployment", "worker")["spec"]["template"]


# ---- units and scripts -----------------------------------------------------------------------------------


def keys_of(unit: Path) -> dict[str, list[str]]:
    """Return the settings of a systemd unit: name -> values."""
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^([A-Za-z]+)=(.*)$", unit.read_text(), flags=re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


def variables_of(path: Path) -> dict[str, str]:
    """Return the variables of a file with NAME=VALUE lines."""
    return dict(re.findall(r"^([A-Z_]+)=(.*)$", path.read_text(), flags=re.MULTILINE))
