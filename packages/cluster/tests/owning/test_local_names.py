"""Names of local stores: asked for by a node, ruled over by the owner of the realm."""

from __future__ import annotations

import msgspec
import pytest

from penstock_cluster.owning.local_names import (
    LOCAL_NAMES_MAX,
    LocalName,
    LocalNames,
    local_names_of,
)
from penstock_core.vocabulary.errors import (
    Damaged,
    Deposed,
    IllegalState,
    LimitReached,
    NameAlreadyBound,
)
from penstock_core.vocabulary.ports import VersionedRecord


def names_with_request(name: str, node: str = "n2", asking: str = "first") -> LocalNames:
    return LocalNames().with_owner(1).with_request(name, LocalName(node, "channel", asking))


@pytest.mark.spec("N8")
def test_a_name_that_no_cluster_wide_store_has_is_granted() -> None:
    names = names_with_request("orders")
    assert names.ruling_for("orders", "n2", "first") == "asked"

    names = names.with_rulings(1, lambda _: False)

    assert names.ruling_for("orders", "n2", "first") == "granted"
    assert list(names.reserved) == ["orders"]


@pytest.mark.spec("N8")
def test_a_name_that_a_cluster_wide_store_has_is_refused_and_keeps_nobody_from_it() -> None:
    names = names_with_request("orders").with_rulings(1, lambda name: name == "orders")

    assert names.ruling_for("orders", "n2", "first") == "refused"
    assert names.reserved == {}
    again = names.with_request("orders", LocalName("n3", "queue", "second"))
    assert again.ruling_for("orders", "n3", "second") == "asked"


@pytest.mark.spec("N8")
@pytest.mark.parametrize("is_granted", [True, False])
def test_a_name_is_one_nodes(is_granted: bool) -> None:
    names = names_with_request("orders")
    if is_granted:
        names = names.with_rulings(1, lambda _: False)

    with pytest.raises(NameAlreadyBound, match="a local channel of node n2"):
        names.with_request("orders", LocalName("n3", "channel", "second"))


@pytest.mark.spec("N8")
def test_what_is_asked_for_is_kept_from_cluster_wide_stores_before_it_is_granted() -> None:
    assert list(names_with_request("orders").reserved) == ["orders"]


@pytest.mark.spec("N8")
def test_an_owner_rules_over_nothing_once_the_next_has_begun() -> None:
    names = names_with_request("orders").with_owner(2)

    with pytest.raises(Deposed, match="epoch 2 rules"):
        names.with_rulings(1, lambda _: False)
    with pytest.raises(Deposed, match="epoch 2 rules"):
        names.with_owner(1)
    assert names.with_rulings(2, lambda _: False).reserved["orders"].ruling == "granted"


def test_an_owner_rules_only_once_it_has_begun() -> None:
    with pytest.raises(Deposed):
        names_with_request("orders").with_rulings(2, lambda _: False)


@pytest.mark.spec("N8")
def test_a_node_gives_back_its_own_names_and_no_others() -> None:
    names = names_with_request("orders").with_request("prices", LocalName("n3", "channel", "other"))

    assert names.without("orders", "n3") == names
    assert names.without("orders", "n2", "another asking") == names
    assert list(names.without("orders", "n2").names) == ["prices"]
    with pytest.raises(IllegalState, match="was removed meanwhile"):
        names.without("orders", "n2").ruling_for("orders", "n2", "first")


@pytest.mark.spec("N8")
def test_a_node_that_will_not_come_back_leaves_its_names_to_others() -> None:
    names = names_with_request("orders").with_request("prices", LocalName("n3", "channel", "other"))

    assert list(names.without_node("n2").names) == ["prices"]
    assert names.without_node("n4") is names


def test_there_is_a_limit_which_a_refused_name_may_still_ask_under() -> None:
    one = LocalName("n2", "channel", "first", ruling="granted")
    names = LocalNames({str(number): one for number in range(LOCAL_NAMES_MAX - 1)})
    names = names.with_request("orders", LocalName("n2", "channel", "last"))

    with pytest.raises(LimitReached, match="4000 local channels"):
        names.with_request("more", LocalName("n2", "channel", "more"))
    refused = names.with_owner(1).with_rulings(1, lambda _: True)
    again = refused.with_request("orders", LocalName("n2", "channel", "again"))
    assert again.ruling_for("orders", "n2", "again") == "asked"


def test_a_record_of_the_register_is_read_as_it_was_written() -> None:
    names = names_with_request("orders").with_rulings(1, lambda _: False)

    assert local_names_of(VersionedRecord(1, msgspec.json.encode(names))) == names
    assert local_names_of(None) == LocalNames()
    with pytest.raises(Damaged, match="cluster/local in the register"):
        local_names_of(VersionedRecord(1, b"[]"))
