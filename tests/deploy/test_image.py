"""The Dockerfile: two small images that run without rights on a read-only root file system."""

from __future__ import annotations

import json
import re
import tomllib

import pytest
from support.deploying import DEPLOY, ROOT, has_passed, program, run

from vrampool.cli.health import health
from vrampool.cli.serve import coordinator
from vrampool_worker.cli import worker

DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
IGNORED = DOCKERFILE.with_name("Dockerfile.dockerignore")
COMMANDS = {"coordinator": coordinator, "worker": worker, "health": health}


def stages() -> dict[str, list[tuple[str, str]]]:
    """Return the instructions of each stage by its name; what a stage is made from comes first."""
    found: dict[str, list[tuple[str, str]]] = {}
    text = re.sub(r"\\\n\s*", " ", DOCKERFILE.read_text())
    arguments = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        word, _, rest = line.partition(" ")
        if word == "ARG" and not found:
            name, _, value = rest.partition("=")
            arguments["${" + name + "}"] = value
        elif word == "FROM":
            base, _, name = rest.partition(" AS ")
            found[name] = [*found.get(base, [("FROM", arguments.get(base, base))])]
            current = found[name]
        else:
            current.append((word, rest))
    return found


def last(instructions: list[tuple[str, str]], word: str) -> str:
    return [rest for name, rest in instructions if name == word][-1]


@pytest.fixture(params=["control", "worker"])
def target(request) -> list[tuple[str, str]]:
    return stages()[request.param]


def test_hadolint_finds_nothing():
    has_passed(run(program("hadolint"), str(DOCKERFILE)))


def test_hadolint_notices_a_slip(tmp_path):
    bad = tmp_path / "Dockerfile"
    bad.write_text(DOCKERFILE.read_text().replace("tini=0.19.0-*", "tini"))
    assert run(program("hadolint"), str(bad)).returncode != 0


def test_the_base_is_pinned_to_a_release(target):
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-[a-z]+", last(target, "FROM"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = re.search(r"3\.\d+", last(target, "FROM")).group()
    assert float(version[2:]) >= float(project["requires-python"].removeprefix(">=3."))


def test_it_runs_as_a_user_without_rights_under_an_init(target):
    user, _, group = last(target, "USER").partition(":")
    assert int(user) > 0 and int(group) > 0, "a number, or Kubernetes cannot see that it is not root"
    assert json.loads(last(target, "ENTRYPOINT")) == ["tini", "--", "vrampool"]


def test_nothing_is_installed_after_the_build(target):
    """A virtual environment made in another stage is all that comes in; compilers and caches stay there."""
    copied = [rest for name, rest in target if name in ("COPY", "ADD")]
    assert [rest.split()[0].partition("=")[0] for rest in copied] == ["--from"]
    assert not any("pip" in rest for name, rest in target if name == "RUN")
    assert "rm -rf /var/lib/apt/lists/*" in last(target, "RUN")


def test_it_needs_no_writable_root(target):
    """What it writes goes to the state directory, which is a volume, and to /tmp."""
    variables = dict(re.findall(r"([A-Z_]+)=(\S+)", " ".join(rest for name, rest in target if name == "ENV")))
    assert variables["PYTHONDONTWRITEBYTECODE"] == "1"
    assert variables["VRAMPOOL_STATE_DIR"] == variables["HOME"] == last(target, "WORKDIR")


def test_it_asks_itself_whether_it_is_well(target):
    words = json.loads(last(target, "HEALTHCHECK").partition("CMD ")[2])
    assert words == ["vrampool", "health"]


def test_the_commands_exist(target):
    words = json.loads(last(target, "CMD"))
    COMMANDS[words[0]].make_context(words[0], words[1:])


def test_only_the_worker_has_torch_and_asks_for_nvml():
    def built(name: str) -> str:
        return " ".join(rest for word, rest in stages()[f"build-{name}"] if word == "RUN")

    assert "torch" in built("worker") and "torch" not in built("control")
    assert ("ENV", "NVIDIA_DRIVER_CAPABILITIES=compute,utility") in stages()["worker"]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name in ("worker", "control"):
        asked = re.search(r"'\.\[(.*)\]'", built(name)).group(1).split(",")
        assert set(asked) <= set(extras) and "postgres" in asked


def test_what_is_copied_is_there_and_not_ignored():
    kept = [line[1:] for line in IGNORED.read_text().splitlines() if line.startswith("!")]
    for name in ("build-control", "build-worker"):
        for word, rest in stages()[name]:
            if word == "COPY":
                *sources, _ = rest.split()
                assert [source for source in sources if not (ROOT / source).exists()] == []
                assert [source for source in sources if source not in kept] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = {project["project"]["readme"], *project["project"]["license-files"]}
    needed |= {path.partition("/")[0] for path in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]}
    assert needed <= set(kept), "the wheel is built from what the image's build sees"
