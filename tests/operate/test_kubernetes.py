"""The Helm chart and the Compose files: rendered, and checked against the schemas of Kubernetes and
the options of the program. Nothing is deployed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import kubernetes_validate
import pytest
import yaml

import penstock
from penstock_server.settings.loading import described, load, variable_of
from tests.operate.charts import CHART, FOLDER, KUBERNETES, of_kind, render, run_helm
from tests.operate.command_lines import parse

COMPOSE = ("compose.yaml", "compose-cluster.yaml")
VALUES: Mapping[str, Mapping[str, Any]] = {
    "one realm": {},
    "every port": {"ports": {"amqp": 5672, "mqtt": 1883}, "tls": {"names": ["events.example.org"]}},
    "own certificate": {"tls": {"secretName": "certificate"}},
    "options": {"settings": {"limits.memory_bytes": "268435456", "name": "berlin"}},
    "telemetry": {
        "telemetry": {
            "endpoint": "http://collector.monitoring:4318",
            "environmentSecretName": "collector",
        }
    },
    "cluster": {"cluster": {"enabled": True}, "storage": {"className": "fast"}},
    "five nodes": {"cluster": {"enabled": True, "nodes": 5, "secretName": "shared"}},
    "cluster on an engine": {
        "cluster": {"enabled": True, "nodes": 2, "engineSecretName": "engine"},
        "podLabels": {"team": "events"},
        "podAnnotations": {"note": "1"},
    },
    "metrics": {
        "serviceMonitor": {
            "enabled": True,
            "credentialsSecretName": "reader",
            "labels": {"release": "prometheus"},
        }
    },
    "metrics with a token": {
        "tls": {"secretName": "certificate"},
        "cluster": {"enabled": True},
        "serviceMonitor": {
            "enabled": True,
            "tokenSecretName": "token",
            "caSecretName": "certificate",
        },
    },
    "closed": {
        "networkPolicy": {
            "clients": [{"namespaceSelector": {"matchLabels": {"team": "shop"}}}],
            "monitors": [{"namespaceSelector": {"matchLabels": {"team": "operators"}}}],
        },
        "affinity": {"nodeAffinity": {}},
        "imagePullSecrets": [{"name": "registry"}],
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "events", "operator": "Exists"}],
    },
}
"""Values of releases, by what is special about them."""


def container(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (only,) = of_kind("StatefulSet", objects)["spec"]["template"]["spec"]["containers"]
    assert isinstance(only, dict)
    return only


def environment(objects: list[dict[str, Any]], pod: str = "shop-penstock-0") -> dict[str, str]:
    """Return the options of a pod's realm. A secret's key stands for its value."""
    variables = {
        entry["name"]: entry.get("value", "nats://engine:4222")
        for entry in container(objects)["env"]
    }
    return {
        name: text.replace("$(POD_NAME)", pod)
        for name, text in variables.items()
        if name.startswith("PENSTOCK_")
    }


@pytest.mark.parametrize("name", VALUES)
def test_the_chart_renders_what_kubernetes_accepts(name: str) -> None:
    linted = run_helm(
        "lint", str(CHART), "--strict", "--kube-version", KUBERNETES, values=VALUES[name]
    )
    objects = render(VALUES[name])

    assert linted.returncode == 0, linted.stdout
    for document in objects:
        if document["kind"] != "ServiceMonitor":  # an object of the Prometheus operator
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
    names = [(document["kind"], document["metadata"]["name"]) for document in objects]
    assert len(set(names)) == len(names)
    assert all(document["metadata"]["labels"] for document in objects)


@pytest.mark.parametrize("name", VALUES)
def test_the_chart_starts_what_the_program_accepts(name: str) -> None:
    objects = render(VALUES[name])
    arguments = [
        text.replace("$(POD_NAME)", "shop-penstock-0") for text in container(objects)["args"]
    ]
    variables = {variable_of(path) for path, _, _ in described()}

    parsed = parse(arguments)
    settings = load(environment=environment(objects))

    assert str(parsed["data"]).startswith(container(objects)["volumeMounts"][0]["mountPath"])
    assert environment(objects).keys() <= variables
    ports = {port["name"]: port["containerPort"] for port in container(objects)["ports"]}
    assert ports["native"] == settings.listen.port
    assert ports["http"] == settings.http.port
    assert ports.get("amqp") == settings.listen.amqp_port
    assert ports.get("mqtt") == settings.listen.mqtt_port
    has_certificate = bool(settings.listen.tls_certificate and settings.listen.tls_key)
    assert has_certificate != bool(settings.listen.tls_self_signed)


@pytest.mark.parametrize("name", VALUES)
def test_the_pods_have_no_rights_that_the_realm_does_not_need(name: str) -> None:
    objects = render(VALUES[name])
    pod = of_kind("StatefulSet", objects)["spec"]["template"]["spec"]
    rights = container(objects)["securityContext"]

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert rights == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    mounted = {mount["name"] for mount in container(objects)["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]} | {"data"}


def test_nodes_with_their_own_engine_name_each_other() -> None:
    objects = render(VALUES["five nodes"])
    arguments = [
        text.replace("$(POD_NAME)", "shop-penstock-3") for text in container(objects)["args"]
    ]
    parsed = parse(arguments)
    peers = dict(peer.split("=") for peer in parsed["peers"].split(","))
    certificate = environment(objects)["PENSTOCK_LISTEN_TLS_SELF_SIGNED"].split(",")

    assert parsed["name"] in peers
    assert len(peers) == of_kind("StatefulSet", objects)["spec"]["replicas"] == 5
    headless = [
        manifest for manifest in objects if manifest.get("spec", {}).get("clusterIP") == "None"
    ]
    assert [service["spec"]["publishNotReadyAddresses"] for service in headless] == [True]
    (service,) = [service["metadata"]["name"] for service in headless]
    assert peers == {pod: f"{pod}.{service}.events.svc.cluster.local" for pod in peers}
    assert set(peers.values()) <= set(certificate)


def test_a_node_on_an_engine_has_a_name_and_an_address() -> None:
    settings = load(
        environment=environment(render(VALUES["cluster on an engine"]), "shop-penstock-1")
    )

    assert settings.cluster.engine == "nats://engine:4222"
    assert settings.cluster.node == "shop-penstock-1"
    assert (
        settings.cluster.advertise == "shop-penstock-1.shop-penstock-nodes.events.svc.cluster.local"
    )


def test_telemetry_goes_to_the_collector_with_the_variables_of_a_secret() -> None:
    objects = render(VALUES["telemetry"])
    with_secret = container(objects)
    without_telemetry = container(render({}))

    endpoint = load(environment=environment(objects)).telemetry.endpoint
    assert endpoint == "http://collector.monitoring:4318"
    assert with_secret["envFrom"] == [{"secretRef": {"name": "collector"}}]
    assert "envFrom" not in without_telemetry
    assert "PENSTOCK_TELEMETRY_ENDPOINT" not in {
        variable["name"] for variable in without_telemetry["env"]
    }


def test_only_a_cluster_has_a_disruption_budget_and_a_secret() -> None:
    kinds = {name: {object_["kind"] for object_ in render(VALUES[name])} for name in VALUES}

    assert not kinds["one realm"] & {"PodDisruptionBudget", "Secret"}
    assert kinds["cluster"] >= {"PodDisruptionBudget", "Secret"}
    assert "Secret" not in kinds["five nodes"]
    secret = of_kind("Secret", render(VALUES["cluster"]))
    assert secret["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_the_ports_of_the_engine_are_open_to_the_nodes_only() -> None:
    objects = render(VALUES["cluster"])
    for_clients, for_nodes = of_kind("NetworkPolicy", objects)["spec"]["ingress"]
    pods = of_kind("StatefulSet", objects)["spec"]["selector"]["matchLabels"]

    assert {port["port"] for port in for_clients["ports"]} == {"native", "http"}
    assert for_nodes == {"from": [{"podSelector": {"matchLabels": pods}}]}
    closed = of_kind("NetworkPolicy", render(VALUES["closed"]))["spec"]["ingress"]
    assert closed[0]["from"] == VALUES["closed"]["networkPolicy"]["clients"]
    assert closed[1]["from"] == VALUES["closed"]["networkPolicy"]["monitors"]
    assert [port["port"] for port in closed[1]["ports"]] == ["http"]


def scrape(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what Prometheus does with the only endpoint of a release."""
    (endpoint,) = of_kind("ServiceMonitor", render(values))["spec"]["endpoints"]
    assert isinstance(endpoint, dict)
    return endpoint


@pytest.mark.parametrize("name", ["metrics", "metrics with a token"])
def test_prometheus_scrapes_each_pod_once_under_the_job_of_the_alerts(name: str) -> None:
    objects = render(VALUES[name])
    monitor = of_kind("ServiceMonitor", objects)
    wanted = monitor["spec"]["selector"]["matchLabels"]
    scraped = [
        document
        for document in objects
        if document["kind"] == "Service"
        and wanted.items() <= document["metadata"]["labels"].items()
    ]

    assert [document["metadata"]["name"] for document in scraped] == ["shop-penstock-nodes"]
    assert scrape(VALUES[name])["port"] in {port["name"] for port in scraped[0]["spec"]["ports"]}
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    job = scraped[0]["metadata"]["labels"][monitor["spec"]["jobLabel"]]
    assert f'job="{job}"' in (FOLDER / "alerts.yml").read_text(encoding="utf-8")


def test_prometheus_signs_in_and_checks_the_certificate_that_a_secret_has() -> None:
    with_user, with_token = VALUES["metrics"], VALUES["metrics with a token"]
    named = {**with_token["serviceMonitor"], "serverName": "events.example.org"}

    assert scrape(with_user) == {
        "port": "http",
        "path": "/metrics",
        "scheme": "https",
        "interval": "30s",
        "tlsConfig": {"insecureSkipVerify": True},
        "basicAuth": {
            "username": {"name": "reader", "key": "username"},
            "password": {"name": "reader", "key": "password"},
        },
    }
    assert scrape(with_token) == {
        "port": "http",
        "path": "/metrics",
        "scheme": "https",
        "interval": "30s",
        "tlsConfig": {
            "serverName": "shop-penstock.events.svc",
            "ca": {"secret": {"name": "certificate", "key": "ca.crt"}},
        },
        "authorization": {"credentials": {"name": "token", "key": "token"}},
    }
    settings = scrape({**with_token, "serviceMonitor": named})
    assert settings["tlsConfig"]["serverName"] == "events.example.org"
    labels = of_kind("ServiceMonitor", render(with_user))["metadata"]["labels"]
    assert labels["release"] == "prometheus"


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"cluster": {"enabled": True, "nodes": 4}}, "cluster.nodes must be 3 or 5"),
        ({"cluster": {"enabled": True, "nodes": 1}}, "/cluster/nodes|cluster.nodes"),
        ({"settings": {"limits.memory_bytes": 1}}, "limits.memory_bytes"),
        ({"ports": {"native": 70_000}}, "native"),
        ({"port": 9000}, "port"),
        ({"telemetry": {"endpoint": "collector:4318"}}, "/telemetry/endpoint|telemetry.endpoint"),
        ({"serviceMonitor": {"enabled": True}}, "serviceMonitor needs credentialsSecretName"),
        (
            {
                "serviceMonitor": {
                    "enabled": True,
                    "credentialsSecretName": "reader",
                    "tokenSecretName": "token",
                }
            },
            "exclude each other",
        ),
    ],
)
def test_values_that_are_not_valid_are_refused_by_name(
    values: Mapping[str, Any], reason: str
) -> None:
    result = run_helm("template", "shop", str(CHART), "--kube-version", KUBERNETES, values=values)

    assert result.returncode != 0
    assert re.search(reason, result.stderr), result.stderr


def compose(file: str) -> dict[str, Any]:
    document = yaml.safe_load((FOLDER / file).read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


def services() -> Iterator[tuple[str, dict[str, Any]]]:
    for file in COMPOSE:
        yield from compose(file)["services"].items()


@pytest.mark.parametrize(("name", "service"), list(services()))
def test_each_service_of_compose_is_started_as_the_program_accepts(
    name: str, service: dict[str, Any]
) -> None:
    variables = service["environment"]
    settings = load(environment=variables)
    inside = {int(port.rpartition(":")[2]) for port in service["ports"]}
    volumes = dict(volume.split(":") for volume in service["volumes"])

    assert variables.keys() <= {variable_of(path) for path, _, _ in described()}
    offered = {9000, 9080, settings.listen.amqp_port, settings.listen.mqtt_port} - {None}
    assert inside == offered
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert set(volumes.values()) == {"/data"}
    if arguments := service.get("command"):
        parsed = parse(arguments)
        assert parsed["name"] == name
        assert set(peer.split("=")[0] for peer in parsed["peers"].split(",")) == {"a", "b", "c"}


def test_the_files_name_the_version_that_they_belong_to() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))

    assert chart["version"] == chart["appVersion"] == penstock.__version__
    assert {service["image"] for _, service in services()} == {f"penstock:{penstock.__version__}"}
