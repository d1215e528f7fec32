"""The alerts that are shipped: each fires when it should, by Prometheus' own tool."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import penstock
from packages.server.tests.frontends.http.asking import Web
from penstock_core.api.realm import ClusterInfo, ClusterNodeInfo
from penstock_core.vocabulary.node_figures import NodeFigures, TenureCounts
from tests.access.realms import authority_in
from tests.docs.pages import ROOT

RULES = ROOT / "packaging" / "alerts.yml"
FOUND = dict(re.findall(r"- alert: (\w+)\n\s+expr: (.+)", RULES.read_text(encoding="utf-8")))
REALM = 'instance="berlin:9080",job="penstock"'
STORE = f'{REALM},kind="channel",name="orders"'
DURABLE = f'{REALM},channel="orders",durable="billing"'
OUTBOX = f'{REALM},from="readings",to="orders"'
CASES: dict[str, tuple[dict[str, str], str]] = {
    "RealmDown": ({f"up{{{REALM}}}": "1 1 0x30"}, REALM),
    "NodeDown": ({f'penstock_node_up{{{REALM},node="n2"}}': "1 0x30"}, f'{REALM},node="n2"'),
    "EngineWaits": ({f"penstock_engine_waiting_seconds{{{REALM}}}": "0 3+60x30"}, REALM),
    "EngineDamaged": ({f"penstock_engine_damaged_total{{{REALM}}}": "0 0 1x30"}, REALM),
    "EngineAlmostFull": (
        {f"penstock_engine_room_bytes{{{REALM}}}": f"{3 << 30} {1 << 30}x30"},
        REALM,
    ),
    "EngineServerAlmostFull": (
        {
            f'penstock_engine_server_room_bytes{{{REALM},server="s1"}}': f"{3 << 30} {1 << 30}x30",
            f'penstock_engine_server_room_bytes{{{REALM},server="s2"}}': f"{3 << 30}x31",
        },
        f'{REALM},server="s1"',
    ),
    "SealingWaits": (
        {f'penstock_unsealed_age_seconds{{{REALM},shard="0"}}': "0 540+60x30"},
        f'{REALM},shard="0"',
    ),
    "TakeoversFrequent": (
        {
            f"penstock_node_epoch{{{REALM}}}": "2 2 7x30",
            'penstock_node_epoch{instance="rome:9080",job="penstock"}': "2 2 7x30",
        },
        'job="penstock"',
    ),
    "NodeUnfit": ({f"penstock_node_unfit{{{REALM}}}": "0 0 1x30"}, REALM),
    "TaskFails": (
        {f'penstock_incidents{{{REALM},task="sealing"}}': "0 0 1x30"},
        f'{REALM},task="sealing"',
    ),
    "OutboxWaits": (
        {f"penstock_outbox_age_seconds{{{OUTBOX}}}": "0+60x30"},
        OUTBOX,
    ),
    "PublishersWait": ({f"penstock_publish_congested{{{REALM}}}": "0 0 1x30"}, REALM),
    "DiskSlow": (
        {
            f'penstock_journal_sync_seconds_bucket{{{REALM},le="0.1"}}': "0x30",
            f'penstock_journal_sync_seconds_bucket{{{REALM},le="1"}}': "0+60x30",
            f'penstock_journal_sync_seconds_bucket{{{REALM},le="+Inf"}}': "0+60x30",
        },
        REALM,
    ),
    "ConsumerStuck": ({f"penstock_durable_oldest_seconds{{{DURABLE}}}": "0+60x30"}, DURABLE),
    "NobodyConsumes": (
        {
            f"penstock_durable_outstanding_events{{{DURABLE}}}": "3x30",
            f"penstock_durable_clients{{{DURABLE}}}": "1 0x30",
        },
        DURABLE,
    ),
    "EventsUnreadable": (
        {f'penstock_left_total{{{STORE},cause="quarantined"}}': "0 0 0 2x30"},
        f'{STORE},cause="quarantined"',
    ),
    "EventsLeaveUnconsumed": (
        {f'penstock_left_total{{{STORE},cause="evicted"}}': "0 0 0 9x30"},
        f'{STORE},cause="evicted"',
    ),
    "MemoryShort": (
        {
            f'penstock_memory_bytes{{{REALM},home="heap"}}': "10 95x30",
            f'penstock_memory_limit_bytes{{{REALM},home="heap"}}': "100x30",
        },
        f'{REALM},home="heap"',
    ),
    "DiskAlmostFull": (
        {
            f"penstock_disk_free_bytes{{{REALM}}}": "11 9x30",
            f"penstock_disk_bytes{{{REALM}}}": "100x30",
        },
        REALM,
    ),
    "CertificateEnds": (
        {f"penstock_tls_certificate_end_seconds{{{REALM}}}": f"{14 * 86_400 + 600}x30"},
        REALM,
    ),
    "BackupOld": (
        {f"penstock_backup_age_seconds{{{REALM}}}": "172000+60x30"},
        REALM,
    ),
    "ClientsRefused": (
        {f'penstock_refused_total{{{REALM},code="access-denied"}}': "0 0 0+60x30"},
        'instance="berlin:9080",code="access-denied"',
    ),
    "DeliverySlow": (
        {
            f'penstock_durable_delivery_seconds_bucket{{{DURABLE},le="60"}}': "0x30",
            f'penstock_durable_delivery_seconds_bucket{{{DURABLE},le="300"}}': "0+60x30",
            f'penstock_durable_delivery_seconds_bucket{{{DURABLE},le="+Inf"}}': "0+60x30",
        },
        'instance="berlin:9080",channel="orders",durable="billing"',
    ),
    "DevicesMissMessages": (
        {f"penstock_mqtt_dropped_messages_total{{{REALM}}}": "0+1200x30"},
        REALM,
    ),
    "DevicesRefused": ({f"penstock_mqtt_refused_messages_total{{{REALM}}}": "0+1200x30"}, REALM),
    "FilesRunOut": (
        {
            f"process_open_fds{{{REALM}}}": "70 81x30",
            f"process_max_fds{{{REALM}}}": "100x30",
        },
        REALM,
    ),
    "ConnectionsComeAndGo": (
        {
            f"penstock_connections_opened_total{{{REALM}}}": "0+60x30",
            f"penstock_connections{{{REALM}}}": "3x30",
        },
        REALM,
    ),
    "ClientSlow": (
        {f'penstock_connection_unsent_bytes{{{REALM},connection="3",user="me"}}': "0 2000000x30"},
        f'{REALM},connection="3",user="me"',
    ),
}
"""Series that are scraped each minute, and the labels with which the alert then fires, by alert."""


def dying(folder: Path) -> dict[str, str]:
    """What two scrapes of a realm tell of the copies in a dead event store, as a series: before
    the first burst, and after it, while another durable still holds the events."""
    with penstock.Realm(folder) as realm, realm.connect() as session:
        web = Web(realm.listen_http())
        session.channels.create("dead")
        orders = session.channels.create("orders", dead_event_store="dead")
        billing = orders.durables.create("billing", max_deliveries=1)
        orders.durables.create("audit")
        before = dict(scraped(web, "penstock_dead_total"))
        orders.publish_many([penstock.Event(b"x")] * 3)
        for event in billing.fetch(3, timeout=5.0):
            event.rollback()
        billing.flush()
        after = dict(scraped(web, "penstock_dead_total"))
    assert sum(after.values()) == 3
    return {
        f"penstock_dead_total{{{REALM},{labels}}}": f"{before[labels]}x5 {after[labels]}x20"
        for labels in after
    }


def scraped(web: Web, metric: str) -> Iterator[tuple[str, float]]:
    text = web.ask("GET", "/metrics").data.decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == metric:
                labels = sorted(sample.labels.items())
                yield ",".join(f'{name}="{value}"' for name, value in labels), sample.value


def labels_of(text: str) -> dict[str, str]:
    return dict(re.findall(r'(\w+)="([^"]*)"', text))


def fires(
    promtool: str, folder: Path, alert: str, series: dict[str, str], *at: tuple[str, list[str]]
) -> None:
    """``at``: when, and with which labels it fires then."""
    case: dict[str, Any] = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [
            {
                "eval_time": time,
                "alertname": alert,
                "exp_alerts": [{"exp_labels": labels_of(label)} for label in labels],
            }
            for time, labels in at
        ],
    }
    test = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [case]}
    (folder / "test.yml").write_text(json.dumps(test))  # YAML takes it
    done = subprocess.run(
        [promtool, "test", "rules", str(folder / "test.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("alert", CASES)
def test_an_alert_fires_when_it_should_and_not_before(
    promtool: str, tmp_path: Path, alert: str
) -> None:
    series, labels = CASES[alert]

    fires(promtool, tmp_path, alert, series, ("0m", []), ("20m", [labels]))


@pytest.mark.slow
def test_the_first_events_that_die_are_told(promtool: str, tmp_path: Path) -> None:
    series = dying(tmp_path / "data")
    labels = 'instance="berlin:9080",name="orders",durable="billing",cause="redelivery_limit"'

    fires(promtool, tmp_path, "EventsDie", series, ("4m", []), ("8m", [labels]), ("24m", []))


def test_the_rules_are_whole(promtool: str) -> None:
    done = subprocess.run(
        [promtool, "check", "rules", str(RULES)], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert f"{len(FOUND)} rules found" in done.stdout


def test_each_alert_is_tested_and_on_the_pages() -> None:
    assert set(FOUND) == {*CASES, "EventsDie"}
    guide = (ROOT / "docs" / "guide" / "monitoring.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([^`]+)`", guide.partition("## Alerts")[2], re.MULTILINE)
    assert {metric.replace("\\|", "|") for metric in listed} == set(FOUND.values())
    howto = (ROOT / "docs" / "howto" / "prometheus.md").read_text(encoding="utf-8")
    for alert, expression in re.findall(r"- alert: (\w+)\n\s+expr: (.+)", howto):
        assert FOUND[alert] == expression


@pytest.mark.slow
def test_what_alerts_look_at_is_told_by_a_realm(tmp_path: Path) -> None:
    authority = authority_in(tmp_path)
    with penstock.Realm(
        tmp_path / "data",
        listen__tls_certificate=str(tmp_path / "realm.pem"),
        listen__tls_key=str(tmp_path / "realm.key"),
    ) as realm:
        trusting = ssl.create_default_context(cafile=str(authority.file))
        seen = ClusterNodeInfo(node="n1", state="owner", version="1", url="", renewed_us=0)
        realm.running.cluster = lambda: ClusterInfo(node="n1", nodes=[seen])
        realm.running.tenures = TenureCounts({})
        realm.listener.figures_of = lambda node: NodeFigures()
        realm.listen_mqtt()
        text = Web(realm.listen_http(), tls=trusting).ask("GET", "/metrics").data.decode()
    exported = set(re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE))

    for expression in FOUND.values():
        for name in re.findall(r"(?:penstock|process)_\w+", expression):
            assert name.removesuffix("_bucket") in exported or name in exported, name
