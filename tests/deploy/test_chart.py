"""The Helm chart: valid for every value file, and what it must do for workers, on the rendered documents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click import Command
from redis.connection import parse_url
from sqlalchemy.engine import make_url
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
)

from vrampool._version import __version__
from vrampool.cli.health import health
from vrampool.cli.operate import drain
from vrampool.cli.serve import coordinator
from vrampool.queueing.names import Names
from vrampool.settings import load_settings
from vrampool.signing import SHORTEST_SECRET
from vrampool.units import GIB, parse_budget
from vrampool_worker.cli import worker

COMMANDS: dict[str, Command] = {"health": health, "drain": drain, "coordinator": coordinator, "worker": worker}
FILES = ["", *ROWS]
every_file = pytest.mark.parametrize("row", FILES, ids=lambda row: row or "defaults")
every_row = pytest.mark.parametrize("row", ROWS)
#: What the supervisor itself takes after the grace period, at most.
SUPERVISOR_S = 25


def with_row(row: str = "gpu-24gb", **pool: object) -> dict:
    """Return the values of a row with some of its pool's replaced."""
    values = values_of(row)
    values["workers"]["pools"][row] |= pool
    return values


def worker_pod(documents: list[dict]) -> dict:
    return one(documents, "Deployment", "worker")["spec"]["template"]


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


# ---- where it runs ---------------------------------------------------------------------------------------


@every_row
def test_workers_run_on_the_nodes_of_the_search_only(row):
    affinity = worker_pod(rendered(row))["spec"]["affinity"]
    (term,) = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    search = next(item for item in term["matchExpressions"] if item["key"] == "workload")
    assert search["operator"] == "In" and all(value.startswith("search") for value in search["values"])
    tolerated = {item["key"] for item in worker_pod(rendered(row))["spec"]["tolerations"]}
    assert tolerated == {"nvidia.com/gpu", "workload"}


@pytest.mark.parametrize(
    ("row", "fits", "not_fits"),
    [("gpu-24gb", [24_576, 23_034], [16_384, 81_920]), ("gpu-80gb", [81_559, 143_771], [49_140])],
)
def test_a_row_is_scheduled_to_its_cards(row, fits, not_fits):
    """By the label with the card's memory in MiB that NVIDIA's feature discovery gives to nodes."""
    affinity = worker_pod(rendered(row))["spec"]["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    bounds = [item for item in term["matchExpressions"] if item["key"] == "nvidia.com/gpu.memory"]
    compare = {"Gt": int.__gt__, "Lt": int.__lt__}

    def admits(memory: int) -> bool:
        return all(compare[item["operator"]](memory, int(item["values"][0])) for item in bounds)

    assert bounds
    assert [memory for memory in fits if not admits(memory)] == []
    assert [memory for memory in not_fits if admits(memory)] == []


@every_row
def test_workers_spread_over_hosts_and_never_share_one_with_production_training(row):
    template = worker_pod(rendered(row))
    rules = template["spec"]["affinity"]["podAntiAffinity"]
    (never,) = rules["requiredDuringSchedulingIgnoredDuringExecution"]
    assert never["topologyKey"] == "kubernetes.io/hostname"
    assert never["namespaceSelector"] == {}, "in any namespace"
    assert selects(never["labelSelector"], {"workload": "production-training"})
    (spread,) = rules["preferredDuringSchedulingIgnoredDuringExecution"]
    assert selects(spread["podAffinityTerm"]["labelSelector"], template["metadata"]["labels"])


@every_row
def test_the_search_gives_way_to_everything_else(row):
    documents = rendered(row)
    priority = one(documents, "PriorityClass")
    assert (priority["value"] < 0, priority["preemptionPolicy"], priority["globalDefault"]) == (True, "Never", False)
    assert worker_pod(documents)["spec"]["priorityClassName"] == priority["metadata"]["name"]


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


# ---- what it may ---------------------------------------------------------------------------------------


@every_file
def test_no_pod_has_rights_it_does_not_need(row):
    for template in pods_of(rendered(row)):
        pod, spec = template["spec"], container(template)
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True and pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert spec["resources"]["requests"]["memory"] and spec["resources"]["limits"]["memory"]


@every_row
def test_a_worker_may_write_where_it_must(row):
    template = worker_pod(rendered(row))
    volumes = {item["name"]: item for item in template["spec"]["volumes"]}
    mounts = {item["mountPath"]: item["name"] for item in container(template)["volumeMounts"]}
    assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
    assert "sizeLimit" in volumes[mounts["/dev/shm"]]["emptyDir"]
    assert "emptyDir" in volumes[mounts["/tmp"]]
    assert "emptyDir" in volumes[mounts[environment(template)["VRAMPOOL_STATE_DIR"]]]


@every_file
def test_passwords_are_in_secrets_only(row):
    documents = rendered(row)
    secret = one(documents, "Secret")["stringData"]
    rest = json.dumps([item for item in documents if item["kind"] != "Secret"])
    assert [key for key in ("secret", "redis-password", "postgresql-password") if secret[key] in rest] == []
    assert len(secret["secret"]) >= SHORTEST_SECRET
    for deployment in of_kind(documents, "Deployment"):
        template = deployment["spec"]["template"]
        variables = environment(template)
        for name in ("VRAMPOOL_REDIS", "VRAMPOOL_STORAGE"):
            reference = variables[name]["secretKeyRef"]
            assert reference["name"] == one(documents, "Secret")["metadata"]["name"] and reference["key"] in secret
        assert "VRAMPOOL_SECRET" not in variables, "from a file, which trials' environments do not hold"
        (volume,) = (item for item in template["spec"]["volumes"] if item["name"] == "secret")
        assert volume["secret"]["defaultMode"] == 0o440
        assert variables["VRAMPOOL_SECRET_FILE"] == "/etc/vrampool/secret"


@every_file
def test_the_urls_lead_to_the_bundled_services(row):
    documents = rendered(row)
    secret = one(documents, "Secret")["stringData"]
    redis, storage = parse_url(secret["redis-url"]), make_url(secret["storage-url"])
    services = {item["metadata"]["name"]: item for item in of_kind(documents, "Service")}
    assert (redis["port"], redis["password"]) == (6379, secret["redis-password"])
    assert (storage.port, storage.password) == (5432, secret["postgresql-password"])
    assert storage.drivername == "postgresql+psycopg"
    for host, component in ((redis["host"], "redis"), (storage.host, "postgresql")):
        labels = one(documents, "StatefulSet", component)["spec"]["template"]["metadata"]["labels"]
        assert selects({"matchLabels": services[host]["spec"]["selector"]}, labels)
    assert "maxmemory-policy noeviction" in secret["redis.conf"] and "appendonly yes" in secret["redis.conf"]
    assert f"requirepass {secret['redis-password']}" in secret["redis.conf"]


# ---- whom it reaches -----------------------------------------------------------------------------------


def policy_for(documents: list[dict], component: str) -> dict:
    labels = {
        "app.kubernetes.io/name": "vrampool",
        "app.kubernetes.io/instance": RELEASE,
        "app.kubernetes.io/component": component,
    }
    (found,) = (p for p in of_kind(documents, "NetworkPolicy") if selects(p["spec"]["podSelector"], labels))
    assert set(found["spec"]["policyTypes"]) == {"Ingress", "Egress"}
    return found["spec"]


@pytest.mark.parametrize("component", ["worker", "coordinator"])
def test_workers_reach_redis_and_postgresql_only_and_nobody_reaches_them(component):
    documents = rendered("gpu-24gb")
    policy = policy_for(documents, component)
    assert policy["ingress"] == []
    reached = {}
    for rule in policy["egress"]:
        assert rule["to"], "to somebody, not to everybody"
        for port in rule["ports"]:
            reached.setdefault(port["port"], []).extend(rule["to"])
    assert set(reached) == {53, 6379, 5432}
    for port, server in ((6379, "redis"), (5432, "postgresql")):
        (peer,) = reached[port]
        labels = one(documents, "StatefulSet", server)["spec"]["template"]["metadata"]["labels"]
        assert selects(peer["podSelector"], labels) and "namespaceSelector" not in peer


def test_only_the_pool_its_clients_and_keda_reach_redis_and_only_the_pool_and_its_clients_postgresql():
    client = {"podSelector": {"matchLabels": {"app": "notebook"}}}
    documents = render(with_row() | {"networkPolicy": {"clients": [client]}})
    labels = {item: worker_pod(documents)["metadata"]["labels"] for item in ("worker",)}["worker"]
    for server, peers in (("redis", 3), ("postgresql", 2)):
        policy = policy_for(documents, server)
        assert policy["egress"] == []
        (rule,) = policy["ingress"]
        assert len(rule["from"]) == peers and client in rule["from"]
        assert selects(rule["from"][0]["podSelector"], labels)
        assert not selects(rule["from"][0]["podSelector"], labels | {"app.kubernetes.io/component": "dashboard"})


def external() -> dict:
    return with_row() | {
        "secret": {"existing": "mine"},
        "redis": {
            "bundled": False,
            "external": {"host": "redis.internal", "port": 6380, "tls": True, "cidrs": ["10.1.0.0/28"]},
        },
        "postgresql": {"bundled": False, "external": {"cidrs": ["10.2.0.7/32"]}},
    }


def test_redis_and_postgresql_may_be_elsewhere():
    kubernetes_validate = module("kubernetes_validate")
    documents = render(external())
    assert of_kind(documents, "StatefulSet") == of_kind(documents, "Secret") == of_kind(documents, "Service") == []
    egress = {rule["ports"][0]["port"]: rule.get("to") for rule in policy_for(documents, "worker")["egress"]}
    assert egress[6380] == [{"ipBlock": {"cidr": "10.1.0.0/28"}}]
    assert egress[5432] == [{"ipBlock": {"cidr": "10.2.0.7/32"}}]
    assert environment(worker_pod(documents))["VRAMPOOL_REDIS"]["secretKeyRef"] == {"name": "mine", "key": "redis-url"}
    metadata = one(documents, "ScaledObject")["spec"]["triggers"][0]["metadata"]
    assert (metadata["address"], metadata["enableTLS"]) == ("redis.internal:6380", "true")
    for document in documents:
        if not document["apiVersion"].startswith("keda.sh/"):
            kubernetes_validate.validate(document, "1.37", strict=True)


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
