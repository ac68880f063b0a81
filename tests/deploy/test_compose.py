"""The Compose file for one GPU host."""

from __future__ import annotations

import re

import pytest
import yaml
from redis.connection import parse_url
from sqlalchemy.engine import make_url
from support.deploying import DEPLOY, has_passed, program, run, variables_of

from vrampool.cli.serve import coordinator
from vrampool.settings import load_settings
from vrampool_worker.cli import worker

FOLDER = DEPLOY / "compose"
FILE = FOLDER / "compose.yaml"
SUPERVISOR_S = 25
FILLED = {"REDIS_PASSWORD": "r3d", "POSTGRES_PASSWORD": "p0st", "VRAMPOOL_SECRET": "s" * 64}


@pytest.fixture
def compose() -> dict:
    """The file with its variables filled in, as Compose does it."""

    def fill(match: re.Match[str]) -> str:
        name, _, default = match.group(1).partition(":-")
        return FILLED.get(name.partition(":?")[0], default)

    text = re.sub(r"(?<!\$)\$\{([^}]+)\}", fill, FILE.read_text())
    return yaml.safe_load(text)


def seconds(text: str) -> float:
    number, unit = re.fullmatch(r"(\d+)([sm])", text).groups()
    return float(number) * {"s": 1, "m": 60}[unit]


def test_it_is_a_compose_file():
    has_passed(run(program("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(FILE)))


def test_the_linter_finds_nothing():
    has_passed(run(program("dclint"), ".", "--max-warnings", "0", cwd=FOLDER))


def test_the_checks_notice_a_slip(tmp_path):
    bad = tmp_path / "compose.yaml"
    bad.write_text(FILE.read_text().replace("depends_on:", "dependson:"))
    checks = [(program("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(bad))]
    checks.append((program("dclint"), str(bad)))
    for check in checks:
        assert run(*check).returncode != 0


def test_it_has_redis_postgresql_a_coordinator_and_a_worker_on_every_card(compose):
    assert set(compose["services"]) == {"redis", "postgres", "coordinator", "worker"}
    (devices,) = compose["services"]["worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert (devices["driver"], devices["count"], devices["capabilities"]) == ("nvidia", "all", ["gpu"])
    for name, command in (("worker", worker), ("coordinator", coordinator)):
        words = compose["services"][name]["command"]
        assert words[0] == name
        command.make_context(name, words[1:])
        assert compose["services"][name]["build"]["target"] == {"worker": "worker", "coordinator": "control"}[name]
        assert (FOLDER / compose["services"][name]["build"]["context"] / "deploy/docker/Dockerfile").resolve().exists()


def test_the_settings_lead_to_the_services(compose):
    variables = compose["services"]["worker"]["environment"]
    settings = load_settings(env=variables)
    redis, storage = parse_url(settings.redis), make_url(settings.storage)
    assert (redis["host"], redis["password"]) == ("redis", "r3d")
    assert (storage.host, storage.password, storage.database) == ("postgres", "p0st", "vrampool")
    assert settings.budget == "85.0%"
    assert settings.secret == FILLED["VRAMPOOL_SECRET"]
    assert compose["services"]["postgres"]["environment"]["POSTGRES_PASSWORD"] == "p0st"
    known = {f"VRAMPOOL_{name.upper()}" for name in settings.__dataclass_fields__}
    assert {name for name in variables if name.startswith("VRAMPOOL_")} <= known


def test_stopping_it_drains_the_worker(compose):
    service = compose["services"]["worker"]
    settings = load_settings(env=service["environment"])
    assert seconds(service["stop_grace_period"]) >= settings.grace_s + settings.stop_ask_s + SUPERVISOR_S


def test_own_images_run_without_rights_on_a_read_only_root(compose):
    for name in ("worker", "coordinator"):
        service = compose["services"][name]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"] and service["security_opt"] == ["no-new-privileges:true"]
        writable = [item.partition(":")[0] for item in service["tmpfs"]]
        writable += [item.split(":")[1] for item in service.get("volumes", [])]
        assert {"/tmp", "/var/lib/vrampool"} <= set(writable)
    assert compose["services"]["worker"]["shm_size"] == "8gb"


def test_redis_keeps_what_it_is_told_and_nothing_listens_beyond_this_host(compose):
    config = compose["configs"]["redis"]["content"].splitlines()
    assert {"appendonly yes", "maxmemory-policy noeviction", "requirepass r3d", "dir /data"} == set(config)
    assert "redis:/data" in compose["services"]["redis"]["volumes"]
    for service in compose["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_others_images_are_pinned_and_every_service_comes_back(compose):
    for name, service in compose["services"].items():
        assert service["restart"] == "unless-stopped"
        if name in ("redis", "postgres"):
            assert re.fullmatch(rf"{name}:\d+\.\d+(\.\d+)?-[a-z]+", service["image"])


def test_every_variable_is_in_the_example_and_passwords_have_no_default():
    """`docker compose up` without .env must stop, and not start with an empty password."""
    asked = set(re.findall(r"(?<!\$)\$\{([A-Z_]+)", FILE.read_text()))
    example = variables_of(FOLDER / ".env.example")
    assert asked == set(example)
    for name in FILLED:
        assert example[name] == ""
        uses = re.findall(r"(?<!\$)\$\{" + name + r"([^}]*)\}", FILE.read_text())
        assert uses and all(use.startswith(":?") for use in uses)
