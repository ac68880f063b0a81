"""The Helm chart: where its pods run, what they may, and whom they reach, on the rendered documents."""

from __future__ import annotations

import json

import pytest
from redis.connection import parse_url
from sqlalchemy.engine import make_url
from support.deploying import (
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
    with_row,
    worker_pod,
)

from vrampool.signing import SHORTEST_SECRET

FILES = ["", *ROWS]
every_file = pytest.mark.parametrize("row", FILES, ids=lambda row: row or "defaults")
every_row = pytest.mark.parametrize("row", ROWS)


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
        selector = {"matchLabels": services[host]["spec"]["selector"]}
        found = [labels for pod in pods_of(documents) if selects(selector, labels := pod["metadata"]["labels"])]
        assert [labels["app.kubernetes.io/component"] for labels in found] == [component]
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
