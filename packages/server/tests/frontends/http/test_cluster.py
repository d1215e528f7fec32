"""The routes that describe the cluster of a realm."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

import penstock
from packages.server.tests.frontends.http.asking import Web
from penstock_core.api.realm import ClusterInfo, ClusterNodeInfo
from penstock_core.vocabulary.node_figures import NodeFigures, TenureCounts
from penstock_core.vocabulary.ports import CopyCounts
from penstock_core.vocabulary.timings import Timings


def node(name: str, state: str) -> ClusterNodeInfo:
    return ClusterNodeInfo(node=name, state=state, version="1", url="", renewed_us=0)


FOUND = ClusterInfo(
    node="n1",
    epoch=7,
    lease_s=6.0,
    lease_left_s=4.5,
    engine_waiting_s=0.5,
    nodes=[node("n1", "owner"), node("n2", "stands by"), node("n3", "down"), node("n4", "left")],
)

TOLD = {
    'penstock_shard_owner{node="n1"} 1.0',
    'penstock_shard_owner{node="n3"} 0.0',
    "penstock_shard_epoch 7.0",
    "penstock_lease_left_seconds 4.5",
    "penstock_engine_waiting_seconds 0.5",
    'penstock_takeovers_total{why="silent"} 2.0',
    "penstock_takeover_seconds 1.25",
    "penstock_node_serves 1.0",
    "penstock_node_unfit 0.0",
    "penstock_node_epoch 7.0",
    "penstock_relays 4.0",
    "penstock_deposed_total 3.0",
    'penstock_engine_leader{server="s2"} 1.0',
    "penstock_engine_damaged_total 2.0",
    "penstock_engine_room_bytes 5.0",
    'penstock_engine_server_room_bytes{server="s1"} 9.0',
    'penstock_engine_server_room_bytes{server="s2"} 5.0',
    'penstock_engine_server_room_bytes{server="s3"} 0.0',
    'penstock_withheld_total{what="answers"} 4.0',
    'penstock_withheld_total{what="deliveries"} 0.0',
    'penstock_unsealed_age_seconds{shard="0"} 0.0',
    'penstock_appends_ambiguous_total{became="stored"} 2.0',
    "penstock_blob_cache_bytes 7.0",
    "penstock_blob_cache_hits_total 5.0",
    "penstock_blob_cache_misses_total 3.0",
    'penstock_engine_append_seconds_bucket{le="0.025"} 0.0',
    'penstock_engine_append_seconds_bucket{le="0.05"} 1.0',
    "penstock_engine_append_seconds_sum 0.04",
}
"""Lines of the metrics of the owner."""


def test_nodes_are_shown_with_their_state(monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.Realm() as realm:
        web = Web(realm.listen_http())
        alone = web.ask("GET", "/api/v1/cluster").document
        assert (alone["node"], alone["nodes"]) == ("", [])
        assert "penstock_node_up" not in web.ask("GET", "/metrics").data.decode()
        for name in ("takeover", "takeovers", "deposed", "engine_append"):
            assert f"penstock_{name}" not in web.ask("GET", "/metrics").data.decode()
        realm.running.cluster = lambda: FOUND
        realm.running.tenures = TenureCounts(
            {}, leader="s2", room=5, rooms={"s1": 9, "s2": 5, "s3": 0}, damages={"a", "b"}
        )
        figures = NodeFigures(
            takeovers={"first": 1, "silent": 2}, takeover_us=1_250_000, deposed=3, relays=4, epoch=7
        )
        realm.listener.figures_of = {"n1": figures}.get
        realm.running.dispatch.withheld["answers"] += 4
        blobs: Any = realm.running.blobs
        blobs.copies = CopyCounts(7, 5, 3)
        info, appends = realm.running.journal_info, Timings()
        appends.note(40_000)
        monkeypatch.setattr(
            type(realm.running),
            "journal_info",
            structs.replace(info, appends=appends, ambiguous={"stored": 2, "deposed": 0}),
        )

        cluster = web.ask("GET", "/api/v1/cluster").document
        assert (cluster["node"], cluster["epoch"], cluster["lease_left_s"]) == ("n1", 7, 4.5)
        assert {node["node"]: node["state"] for node in cluster["nodes"]} == {
            "n1": "owner",
            "n2": "stands by",
            "n3": "down",
            "n4": "left",
        }
        text = web.ask("GET", "/metrics").data.decode().splitlines()

    assert {line for line in text if line.startswith("penstock_node_up{")} == {
        'penstock_node_up{node="n1"} 1.0',
        'penstock_node_up{node="n2"} 1.0',
        'penstock_node_up{node="n3"} 0.0',
        'penstock_node_up{node="n4"} 0.0',
    }
    assert TOLD - set(text) == set()
