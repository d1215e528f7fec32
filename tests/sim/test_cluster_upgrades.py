"""Lives of a cluster that is upgraded node by node: nothing is lost, and no node serves data in a
format that it does not support."""

from __future__ import annotations

import pytest

from penstock_cluster.nodes.node import ClusterNode
from penstock_cluster.owning.claims import Claims
from penstock_cluster.owning.register_records import ClaimRecord
from tests.sim.cluster_upgrades import NEWER, upgraded_life_of

SEEDS = range(1, 7)


@pytest.mark.slow
@pytest.mark.spec("N3")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_rolling_upgrade_loses_nothing_and_the_older_version_is_refused_at_its_end(
    seed: int,
) -> None:
    world = upgraded_life_of(seed)

    assert world.newest == NEWER
    assert world.takeovers > 1
    assert world.refusals == 1


@pytest.mark.slow
def test_a_node_that_claims_what_a_newer_one_has_written_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = Claims.may_claim

    def may_claim(claims: Claims, shard: int, claim: ClaimRecord | None, now_us: int) -> bool:
        claims.format = 0
        newest = None if claim is None else ClaimRecord(*_older(claim, claims.me.format))
        return original(claims, shard, newest, now_us=now_us)

    monkeypatch.setattr(Claims, "may_claim", may_claim)
    monkeypatch.setattr(ClusterNode, "_refuse_newer", lambda *_: None)

    with pytest.raises(AssertionError, match="serves what was written in format 2"):
        _live_all()


def _live_all() -> None:
    for seed in SEEDS:
        upgraded_life_of(seed)


def _older(claim: ClaimRecord, format: int) -> tuple[str, str, int, int, int]:
    return claim.owner, claim.nonce, claim.epoch, format, claim.confirmed
