"""Prometheus reads the metrics of a realm whose users sign in, as the pages configure it."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from jwt.algorithms import ECAlgorithm
from prometheus_client.parser import text_string_to_metric_families

import penstock
from packages.server.tests.frontends.http.asking import Reply, Web
from tests.docs.pages import PAGES, Block, blocks
from tests.operate.charts import of_kind, render

CONFIGURATIONS = [
    block
    for page in PAGES
    for block in blocks(page)
    if block.language == "yaml" and "scrape_configs" in block.text
]
PASSWORD = "what prometheus knows"


def job_of(block: Block) -> dict[str, Any]:
    (job,) = yaml.safe_load(block.text)["scrape_configs"]
    assert isinstance(job, dict)
    return job


def signing_in() -> Block:
    """The configuration for a realm with users on another machine."""
    (block,) = [
        block
        for block in CONFIGURATIONS
        if {"basic_auth", "static_configs"} <= job_of(block).keys()
    ]
    return block


@pytest.mark.parametrize(
    "block", CONFIGURATIONS, ids=lambda block: f"{block.page.stem}:{block.line}"
)
def test_prometheus_reads_the_configurations_of_the_pages(
    promtool: str, tmp_path: Path, block: Block
) -> None:
    job = job_of(block)
    if job.pop("kubernetes_sd_configs", None):  # Debian's build does not know Kubernetes
        job["static_configs"] = [{"targets": ["localhost:9080"]}]
    file = tmp_path / "prometheus.yml"
    file.write_text(json.dumps({"scrape_configs": [job]}), encoding="utf-8")

    done = subprocess.run(
        [promtool, "check", "config", "--syntax-only", str(file)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_configuration_for_kubernetes_finds_the_pods_of_the_chart() -> None:
    (block,) = [
        configuration
        for configuration in CONFIGURATIONS
        if "kubernetes_sd_configs" in job_of(configuration)
    ]
    job = job_of(block)
    (names,) = [
        configuration["namespaces"]["names"] for configuration in job["kubernetes_sd_configs"]
    ]
    objects = render({"tls": {"secretName": "certificate"}})
    addresses = {
        f"{document['metadata']['name']};{port['name']}"
        for document in objects
        if document["kind"] == "Service"
        for port in document["spec"]["ports"]
    }
    monitor = render(
        {
            "tls": {"secretName": "certificate"},
            "serviceMonitor": {"enabled": True, "credentialsSecretName": "reader"},
        }
    )
    (endpoint,) = of_kind("ServiceMonitor", monitor)["spec"]["endpoints"]

    assert names == ["events"]
    assert [rule["regex"] for rule in job["relabel_configs"]] == ["shop-penstock-nodes;http"]
    assert "shop-penstock-nodes;http" in addresses
    assert job["tls_config"]["server_name"] == endpoint["tlsConfig"]["serverName"]


@pytest.fixture
def token(tmp_path: Path) -> str:
    """A token of an identity provider, whose keys are in ``keys.json``."""
    signer = generate_private_key(SECP256R1())
    public = json.loads(ECAlgorithm.to_jwk(signer.public_key()))
    keys = {"keys": [{**public, "kid": "k", "alg": "ES256"}]}
    (tmp_path / "keys.json").write_text(json.dumps(keys))
    claims = {"iss": "sso", "aud": "penstock", "sub": "prometheus", "exp": 4_000_000_000}
    return jwt.encode(claims, signer, algorithm="ES256", headers={"kid": "k"})


@pytest.fixture
def web(tmp_path: Path, token: str) -> Iterator[Web]:
    """A realm with TLS and mandatory authentication, in which the user of the page may read the
    metrics, at its name and with its own certificate as the authority."""
    with penstock.Realm(
        tmp_path / "data",
        access__mode="mandatory",
        access__password_rounds=4_096,
        access__failure_delay_s=0.0,
        access__token_keys=str(tmp_path / "keys.json"),
        access__token_issuer="sso",
        access__token_audience="penstock",
        listen__tls_self_signed="localhost",
    ) as realm:
        with realm.connect() as session:
            session.access.create_user("prometheus", PASSWORD)
            for subject in ("prometheus@*", "token:prometheus@*"):
                session.access.grant(subject, "access", "monitor")
            session.channels.create("orders").publish(b"secret")
        authority = tmp_path / "data" / "tls" / "realm.pem"
        trusting = ssl.create_default_context(cafile=str(authority))
        url = realm.listen_http().replace("127.0.0.1", "localhost")
        assert url.startswith(job_of(signing_in())["scheme"] + "://localhost:")
        yield Web(url, tls=trusting)


def ask(web: Web, path: str, authorization: str) -> Reply:
    return web.ask("GET", path, headers={"authorization": authorization})


def basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


@pytest.mark.slow
def test_the_user_of_the_page_reads_metrics_over_tls_and_no_events(web: Web, token: str) -> None:
    user = job_of(signing_in())["basic_auth"]["username"]
    for authorization in (basic(user, PASSWORD), f"Bearer {token}"):
        scraped = ask(web, "/metrics", authorization)
        families = {
            family.name: family for family in text_string_to_metric_families(scraped.data.decode())
        }

        assert scraped.status == 200
        assert [sample.value for sample in families["penstock_realm_up"].samples] == [1.0]
        refused = ask(web, "channels/orders/events", authorization)
        assert (refused.status, refused.code) == (403, "access-denied")
        assert b"secret" not in refused.data

    assert ask(web, "/metrics", basic(user, "another password")).status == 401
    assert web.ask("GET", "/metrics").status == 401
