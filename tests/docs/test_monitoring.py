"""The page about monitoring lists the metrics that a realm has."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

import penstock
from packages.server.tests.frontends.http.asking import Web
from tests.docs.pages import ROOT


def test_the_page_lists_every_metric_and_no_other(tmp_path: Path) -> None:
    with penstock.Realm(tmp_path / "data") as realm:
        realm.listen_mqtt()
        text = Web(realm.listen_http()).ask("GET", "/metrics").data.decode()
    metrics = {family.name for family in text_string_to_metric_families(text)}
    page = (ROOT / "docs" / "guide" / "monitoring.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `((?:penstock|process)_\w+)` \|", page, re.MULTILINE))

    documented = {name.removesuffix("_total") for name in listed}
    # This realm has no TLS, is no node of a cluster, and nothing was delivered yet
    later = {
        "penstock_tls_certificate_end_seconds",
        "penstock_relayed_connections",
        "penstock_node_up",
        "penstock_shard_owner",
        "penstock_shard_epoch",
        "penstock_lease_left_seconds",
        "penstock_engine_waiting_seconds",
        "penstock_node_info",
        "penstock_node_serves",
        "penstock_node_unfit",
        "penstock_node_epoch",
        "penstock_relays",
        "penstock_relays_opened",
        "penstock_takeovers",
        "penstock_takeover_seconds",
        "penstock_deposed",
        "penstock_engine_append_seconds",
        "penstock_engine_leader",
        "penstock_engine_damaged",
        "penstock_appends_ambiguous",
        "penstock_withheld",
        "penstock_engine_room_bytes",
        "penstock_engine_server_room_bytes",
        "penstock_unsealed_age_seconds",
        "penstock_blob_cache_bytes",
        "penstock_blob_cache_hits",
        "penstock_blob_cache_misses",
        "penstock_durable_delivery_seconds",
    }
    assert documented == metrics | later
