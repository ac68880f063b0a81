"""The Helm chart: valid for every value file, and what its pods run, for how long, and how many, as rendered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click import Command
from support.deploying import (
    CHART,
    NAMESPACE,
    RELEASE,
    ROWS,
    container,
    environment,
    module,
    of_kind,
    one,
    pods_of,
    render,
    rendered,
    selects,
    values_of,
    with_row,
    worker_pod,
)

from vrampool._version import __version__
from vrampool.cli.health import health
from vrampool.cli.operate import drain
from vrampool.cli.serve import coordinator
from vrampool.queueing.names import Names
from vrampool.settings import load_settings
from vrampool.units import GIB, parse_budget
from vrampool_worker.cli import worker

COMMANDS: dict[str, Command] = {"health": health, "drain": drain, "coordinator": coordinator, "worker": worker}
FILES = ["", *ROWS]
every_file = pytest.mark.parametrize("row", FILES, ids=lambda row: row or "defaults")
every_row = pytest.mark.parametrize("row", ROWS)
#: What the supervisor itself takes after the grace period, at most.
SUPERVISOR_S = 25


# ---- validity ------------------------------------------------------------------------------------------


def test_there_is_a_value_file_for_each_of_the_three_rows():
    assert set(ROWS) == {"gpu-24gb", "gpu-80gb", "offload"}


@every_file
def test_helm_finds_nothing_to_complain_about(row):
    report = module("helm_python").lint(str(CHART), values_of(row), strict=True)
    assert report["errors"] == []
    assert [message for message in report["messages"] if message["severity"] >= 2] == []


@pytest.mark.parametrize("version", ["1.29", "1.37"])
@every_file
def test_every_document_is_valid_for_kubernetes(row, version):
    """Strictly: a key that Kubernetes does not know is an error. KEDA's kinds have a schema of our own."""
    kubernetes_validate = module("kubernetes_validate")
    keda = json.loads(Path(__file__).with_name("keda.schema.json").read_text())
    documents = rendered(row)
    assert documents
    for document in documents:
        if document["apiVersion"].startswith("keda.sh/"):
            module("jsonschema").validate(document, keda)
        else:
            kubernetes_validate.validate(document, version, strict=True)


def test_the_checks_themselves_notice_a_slip():
    kubernetes_validate, jsonschema = module("kubernetes_validate"), module("jsonschema")
    documents = rendered("gpu-24gb")
    budget = one(documents, "PodDisruptionBudget", "worker")
    budget["spec"]["maxUnavailabel"] = budget["spec"].pop("maxUnavailable")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(budget, "1.37", strict=True)
    scaled = one(documents, "ScaledObject")
    scaled["spec"]["triggers"][0]["metadata"]["listLength"] = 4
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(scaled, json.loads(Path(__file__).with_name("keda.schema.json").read_text()))


@pytest.mark.parametrize(
    "values",
    [
        {"redis": {"bundeld": True}},
        {"workers": {"pools": {"gpu": {"drainSecond": 5}}}},
        {"workers": {"pools": {"gpu": {"gpuMemFraction": 85}}}},
        {"workers": {"pools": {"GPU 24": {}}}},
        {"redis": {"bundled": False}},
    ],
    ids=[
        "unknown key",
        "unknown key of a pool",
        "a percentage",
        "a name that is no label",
        "external without a Secret",
    ],
)
def test_wrong_values_are_refused(values):
    with pytest.raises(module("helm_python").HelmError):
        render(values)


def test_the_version_of_the_chart_is_that_of_the_package():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


@every_file
def test_every_image_is_pinned(row):
    for template in pods_of(rendered(row)):
        _, _, tag = container(template)["image"].rpartition(":")
        assert tag and tag != "latest" and tag[0].isdigit()
    own = container(one(rendered(row), "Deployment", "coordinator")["spec"]["template"])["image"]
    assert own == f"vrampool-control:{__version__}"


# ---- what is run ---------------------------------------------------------------------------------------


def commands_of(template: dict) -> list[list[str]]:
    """Return every command line of ours that a pod runs."""
    spec = container(template)
    found = [spec["args"]]
    found += [spec[probe]["exec"]["command"][1:] for probe in ("startupProbe", "livenessProbe", "readinessProbe")]
    if "lifecycle" in spec:
        found.append(spec["lifecycle"]["preStop"]["exec"]["command"][1:])
    return found


@every_row
def test_the_command_takes_every_command_line(row):
    documents = rendered(row)
    for component in ("coordinator", "worker"):
        for words in commands_of(one(documents, "Deployment", component)["spec"]["template"]):
            COMMANDS[words[0]].make_context(words[0], words[1:])


@every_row
def test_the_settings_are_what_the_values_say(row):
    """Read by the code itself from the pod's environment: a variable with a slip in its name would change nothing."""
    pool = values_of(row)["workers"]["pools"][row]
    variables = {k: v for k, v in environment(worker_pod(rendered(row))).items() if isinstance(v, str)}
    settings = load_settings(env=variables)
    assert parse_budget(settings.budget, 100 * GIB) == pytest.approx(pool["gpuMemFraction"] * 100 * GIB)
    assert (settings.pool, settings.spares) == ("vrampool", pool.get("spares", 1))
    assert settings.max_trials == pool.get("maxTrials")
    assert settings.grace_s == 30
    known = {f"VRAMPOOL_{name.upper()}" for name in settings.__dataclass_fields__}
    named = {name for name in environment(worker_pod(rendered(row))) if name.startswith("VRAMPOOL_")}
    assert named - known == set()


@every_row
def test_a_worker_gets_one_card_and_nvml(row):
    template = worker_pod(rendered(row))
    assert container(template)["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert environment(template)["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    assert 0 < float(environment(template)["GPU_MEM_FRACTION"]) <= 0.85
    assert container(template)["args"] == ["worker", "--gpu", "all"]


@every_file
def test_there_are_two_coordinators_on_hosts_of_their_own_without_cards(row):
    deployment = one(rendered(row), "Deployment", "coordinator")
    assert deployment["spec"]["replicas"] == 2
    template = deployment["spec"]["template"]
    assert "nvidia.com/gpu" not in container(template)["resources"]["limits"]
    (term,) = template["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    assert selects(term["podAffinityTerm"]["labelSelector"], template["metadata"]["labels"])


def test_each_pool_of_cards_is_a_deployment_of_its_own():
    values = {"workers": {"pools": {}}}
    for row in ROWS:
        values["workers"]["pools"] |= values_of(row)["workers"]["pools"]
    documents = render(values)
    names = {item["metadata"]["name"] for item in of_kind(documents, "Deployment", "worker")}
    assert names == {f"{RELEASE}-vrampool-{row}" for row in ROWS}
    for deployment in of_kind(documents, "Deployment", "worker"):
        others = [item for item in of_kind(documents, "Deployment", "worker") if item is not deployment]
        assert selects(deployment["spec"]["selector"], deployment["spec"]["template"]["metadata"]["labels"])
        for other in others:
            assert not selects(deployment["spec"]["selector"], other["spec"]["template"]["metadata"]["labels"])


# ---- how it ends ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("drain_s", "grace_s"), [(0, 1), (5, 5), (600, 30), (7_200, 60)])
def test_the_time_to_end_follows_from_the_time_to_drain(drain_s, grace_s):
    """preStop's time counts, too, and whatever is not done in time is killed."""
    template = worker_pod(render(with_row(drainSeconds=drain_s, graceSeconds=grace_s)))
    given_s = template["spec"]["terminationGracePeriodSeconds"]
    assert given_s >= max(30, drain_s + grace_s + SUPERVISOR_S)
    command = container(template)["lifecycle"]["preStop"]["exec"]["command"]
    assert command == ["vrampool", "drain", "--stay", "--wait", "--timeout", str(drain_s)]
    assert environment(template)["VRAMPOOL_GRACE_S"] == str(grace_s)


@every_file
def test_probes_ask_the_process_itself(row):
    """Not Redis and not the database: an outage of those must restart nothing."""
    documents = rendered(row)
    for deployment in of_kind(documents, "Deployment"):
        spec = container(deployment["spec"]["template"])
        assert spec["livenessProbe"]["exec"]["command"] == ["vrampool", "health"]
        assert spec["startupProbe"]["exec"]["command"] == ["vrampool", "health"]
        assert spec["readinessProbe"]["exec"]["command"] == ["vrampool", "health", "--ready"]
        assert spec["livenessProbe"]["timeoutSeconds"] >= 5
        patience_s = spec["livenessProbe"]["periodSeconds"] * spec["livenessProbe"]["failureThreshold"]
        assert patience_s >= 60


@every_file
def test_a_node_that_is_emptied_takes_one_pod_at_a_time(row):
    documents = rendered(row)
    for deployment in of_kind(documents, "Deployment"):
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        found = [b for b in of_kind(documents, "PodDisruptionBudget") if selects(b["spec"]["selector"], labels)]
        assert [budget["spec"]["maxUnavailable"] for budget in found] == [1]


@every_row
def test_an_upgrade_drains_one_worker_at_a_time_and_needs_no_spare_card(row):
    deployment = one(rendered(row), "Deployment", "worker")
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    grace_s = deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert deployment["spec"]["progressDeadlineSeconds"] > grace_s


# ---- how many there are ----------------------------------------------------------------------------------


@every_row
def test_keda_scales_by_the_trials_that_wait_run_or_could_run(row):
    documents = rendered(row)
    deployment, scaled = one(documents, "Deployment", "worker"), one(documents, "ScaledObject")
    assert "replicas" not in deployment["spec"], "or every upgrade would set it back"
    assert scaled["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["metadata"]["listName"] == Names("vrampool").demand
    assert trigger["metadata"]["address"] == f"{RELEASE}-vrampool-redis.{NAMESPACE}.svc:6379"
    authentication = one(documents, "TriggerAuthentication")
    assert trigger["authenticationRef"]["name"] == authentication["metadata"]["name"]
    (reference,) = authentication["spec"]["secretTargetRef"]
    assert (reference["name"], reference["key"]) == (one(documents, "Secret")["metadata"]["name"], "redis-password")
    assert scaled["spec"]["minReplicaCount"] == 0
    assert scaled["spec"]["cooldownPeriod"] >= 300


def test_without_keda_a_pool_has_the_replicas_it_says():
    documents = render(with_row(keda={"enabled": False}, replicas=3))
    assert one(documents, "Deployment", "worker")["spec"]["replicas"] == 3
    assert of_kind(documents, "ScaledObject") == of_kind(documents, "TriggerAuthentication") == []


# ---- the rest ------------------------------------------------------------------------------------------


def test_the_device_plugin_can_be_told_to_share_cards():
    assert of_kind(rendered("gpu-24gb"), "ConfigMap") == []
    documents = render(with_row() | {"devicePlugin": {"createConfig": True, "replicas": 2}})
    config = one(documents, "ConfigMap")
    assert config["metadata"]["namespace"] == "nvidia-device-plugin"
    assert set(config["data"]) == {"time-slicing", "mps"}
    for name, key in (("time-slicing", "timeSlicing"), ("mps", "mps")):
        content = yaml.safe_load(config["data"][name])
        assert content["version"] == "v1"
        assert content["sharing"][key]["resources"] == [{"name": "nvidia.com/gpu", "replicas": 2}]
    module("kubernetes_validate").validate(config, "1.37", strict=True)


def test_pods_that_share_a_card_have_budgets_of_their_own():
    variables = environment(worker_pod(render(with_row(sharedCardBudget="9GiB"))))
    settings = load_settings(env={k: v for k, v in variables.items() if isinstance(v, str)})
    assert (settings.share, parse_budget(settings.budget, 24 * GIB)) == (True, 9 * GIB)
    assert "GPU_MEM_FRACTION" not in variables


def test_the_offload_row_runs_one_trial_at_a_time_with_the_hosts_memory_and_a_disk():
    template = worker_pod(rendered("offload"))
    assert environment(template)["VRAMPOOL_MAX_TRIALS"] == "1"
    resources = container(template)["resources"]
    assert resources["requests"]["memory"] == resources["limits"]["memory"], "it is what runs out"
    (tmp,) = (item for item in template["spec"]["volumes"] if item["name"] == "tmp")
    assert "medium" not in tmp["emptyDir"] and tmp["emptyDir"]["sizeLimit"] == "500Gi"


def test_a_name_that_says_vrampool_already_is_not_said_twice():
    with module("helm_python").Chart.load(str(CHART)) as chart:
        files = chart.render({}, name="vrampool", namespace="ml")
    assert yaml.safe_load(files["vrampool/templates/serviceaccount.yaml"])["metadata"]["name"] == "vrampool"
