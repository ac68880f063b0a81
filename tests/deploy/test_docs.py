"""docs/deploy.md names commands, variables, values and keys: each of them exists."""

from __future__ import annotations

import re

import click
import yaml
from support.deploying import CHART, DEPLOY, ROOT, ROWS

from vrampool.cli import command
from vrampool.queueing.names import Names
from vrampool.settings import Settings

PAGE = (ROOT / "docs" / "deploy.md").read_text()
KNOWN = {f"VRAMPOOL_{name.upper()}" for name in Settings.__dataclass_fields__} | {"VRAMPOOL_CONFIG"}


def commands_named() -> list[list[str]]:
    """Return each command line of ours, cut where it is joined with something else."""
    found = re.findall(r"(?:`|^ {4}|bin/|exec worker )vrampool ([a-z][^`\n|#(]*)", PAGE, flags=re.MULTILINE)
    return [line.split() for line in found]


def test_every_command_and_option_exists():
    context = click.Context(command)
    lines = commands_named()
    assert len(lines) > 20
    for name, *words in lines:
        found = command.get_command(context, name)
        assert found is not None, name
        options = {option for parameter in found.params for option in parameter.opts}
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= options, (name, words)


def test_every_variable_is_a_setting():
    """In every file of deploy/, too: a variable with a slip in its name would change nothing, in silence."""
    own = {"VRAMPOOL_WORK"}  # Compose's own, in .env
    texts = [PAGE, *(path.read_text() for path in DEPLOY.rglob("*") if path.is_file())]
    for text in texts:
        assert set(re.findall(r"\bVRAMPOOL_[A-Z_]*[A-Z]\b", text)) - own <= KNOWN


def test_every_value_of_the_chart_exists():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    places = [values, values["workers"]["defaults"]]
    named = set(re.findall(r"--set ([\w.]+)=", PAGE))
    named |= set(
        re.findall(r"`((?:keda|networkPolicy|devicePlugin|sharedCardBudget|drainSeconds|graceSeconds)[\w.]*)", PAGE)
    )
    assert len(named) > 8

    def is_there(name: str, place: dict) -> bool:
        head, _, rest = name.partition(".")
        return head in place and (not rest or is_there(rest, place[head]))

    assert [name for name in named if not any(is_there(name, place) for place in places)] == []


def test_every_key_of_redis_and_every_row_is_named_as_it_is():
    names = Names("vrampool")
    assert {names.leader, names.demand} == set(re.findall(r"vrampool:vrampool:\w+", PAGE))
    assert {f"{row}.yaml" for row in ROWS} <= set(re.findall(r"`([\w-]+\.yaml)`", PAGE))


def test_every_file_it_copies_is_there():
    for name in re.findall(r"\bdeploy/[\w./-]*\w", PAGE):
        assert (ROOT / name).exists(), name


def test_no_registry_and_no_machine_is_named():
    for path in [ROOT / "docs" / "deploy.md", *DEPLOY.rglob("*"), *(ROOT / ".github").rglob("*")]:
        if path.is_file():
            assert re.findall(r"\b[\w-]+\.(?:io|com)/[\w-]+/[\w-]+", path.read_text()) == [], path
