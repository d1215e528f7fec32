"""The newest format: the one that a node announces, and the one that a realm without a cluster
writes."""

from __future__ import annotations

from penstock_cluster.owning.register_records import MemberRecord
from penstock_core.vocabulary.formats import FORMAT
from penstock_server.runtime.delivery.owner_lease import ENDLESS


def test_a_node_knows_the_newest_format_and_a_realm_on_its_own_writes_it() -> None:
    assert MemberRecord("n1", "start").format == FORMAT
    assert ENDLESS.format == FORMAT
