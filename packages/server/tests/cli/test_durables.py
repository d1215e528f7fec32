"""``penstock durable``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from penstock.client.sync.sync import Channel, Session

if TYPE_CHECKING:
    from tests.commands import Run


def test_create_prints_the_outstanding_events(penstock_command: Run, orders: Channel) -> None:
    made = penstock_command(
        "durable", "create", "orders", "billing", "--from", "1", "--selector", "price < 3"
    )

    assert made.stdout == "durable billing created: shared, 2 events outstanding\n"
    assert orders.durables.get("billing").info().selector == "price < 3"


def test_a_volatile_exclusive_durable_may_be_created(
    penstock_command: Run, orders: Channel
) -> None:
    penstock_command("durable", "create", "orders", "d", "--type", "exclusive", "--volatile")
    info = orders.durables.get("d").info()

    assert (info.type, info.persistent) == ("exclusive", False)


@pytest.mark.spec("T10")
def test_a_limit_of_deliveries_may_be_set(penstock_command: Run, session: Session) -> None:
    session.channels.create("dead")
    session.channels.create("mail", dead_event_store="dead")

    penstock_command("durable", "create", "mail", "d", "--max-deliveries", "3")
    shown = penstock_command("durable", "show", "mail", "d").stdout

    assert "deliveries    3 at most, then an event is dead\n" in shown
    assert "cluster-wide  no\n" in shown


def test_the_list_has_a_line_for_each_durable(penstock_command: Run, orders: Channel) -> None:
    orders.durables.create("audit", type="exclusive")
    orders.durables.create("billing", type="shared", selector="price > 1")

    header, audit, billing = penstock_command("durable", "list", "orders").stdout.splitlines()

    assert header.split()[:3] == ["durable", "type", "clients"]
    assert audit.split()[:2] == ["audit", "exclusive"]
    assert billing.split()[:2] == ["billing", "shared"]
    assert billing.endswith("price > 1")


def test_an_empty_list_shows_the_create_command(penstock_command: Run, orders: Channel) -> None:
    listed = penstock_command("durable", "list", "orders")

    assert listed.stdout == "no durables; create one with: penstock durable create orders NAME\n"


def test_show_counts_outstanding_events(penstock_command: Run, orders: Channel) -> None:
    durable = orders.durables.create("billing", type="shared")
    with durable.subscribe(window=2) as held:
        held.next_batch(timeout=5.0)
        shown = penstock_command("durable", "show", "orders", "billing").stdout

    assert "type          shared, survives a restart\n" in shown
    assert "deliveries    no limit\n" in shown
    assert "outstanding   5 events, 2 in flight\n" in shown
    assert "clients       none\n" not in shown


def test_show_as_json_has_the_same_numbers(penstock_command: Run, orders: Channel) -> None:
    orders.durables.create("billing", type="shared")

    shown = json.loads(
        penstock_command("durable", "show", "orders", "billing", "--format", "json").stdout
    )

    assert (shown["name"], shown["outstanding"], shown["clients"]) == ("billing", 5, [])


@pytest.mark.spec("D16")
def test_browse_prints_outstanding_events_and_changes_nothing(
    penstock_command: Run, orders: Channel
) -> None:
    durable = orders.durables.create("billing", type="shared", selector="price > 1")

    printed = penstock_command("durable", "browse", "orders", "billing", "--count", "2")

    assert [row.split()[0] for row in printed.stdout.splitlines()[1:]] == ["2", "3"]
    assert (durable.info().outstanding, durable.info().redelivered) == (3, 0)


def test_browse_without_events_prints_a_message(penstock_command: Run, orders: Channel) -> None:
    orders.durables.create("billing", type="shared", start="latest")

    printed = penstock_command("durable", "browse", "orders", "billing")

    assert printed.stdout == "nothing is outstanding for billing\n"


@pytest.mark.spec("D11")
def test_strict_order_may_be_set_and_is_shown(penstock_command: Run, orders: Channel) -> None:
    penstock_command("durable", "create", "orders", "d", "--type", "serial", "--strict-order")
    penstock_command("durable", "create", "orders", "e", "--type", "serial")

    strict = penstock_command("durable", "show", "orders", "d").stdout
    other_output = penstock_command("durable", "show", "orders", "e").stdout

    assert (
        "order         strict; a rolled-back event is redelivered before any later event\n"
        in strict
    )
    assert "order         not strict\n" in other_output


@pytest.mark.spec("D11", "D17")
def test_lanes_may_be_set_and_are_shown(penstock_command: Run, orders: Channel) -> None:
    penstock_command("durable", "create", "orders", "d", "--type", "serial", "--order-by", "sku")

    shown = penstock_command("durable", "show", "orders", "d").stdout

    assert orders.durables.get("d").info().order_by == "sku"
    assert (
        "order         by sku; in order within each value, different values in parallel\n" in shown
    )


def test_a_purge_takes_events_off_one_durable(penstock_command: Run, orders: Channel) -> None:
    mine = orders.durables.create("billing")
    audit = orders.durables.create("audit")
    all_of_them = mine.info().outstanding

    some = penstock_command(
        "durable", "purge", "orders", "billing", "--from", "1", "--to", "1", "-y"
    )
    matching = penstock_command(
        "durable", "purge", "orders", "billing", "--selector", "price < 2", "-y"
    )
    rest = penstock_command("durable", "purge", "orders", "billing", "--yes")

    assert some.stdout == "durable billing: 1 event purged\n"
    assert matching.stdout.startswith("durable billing: ")
    assert rest.stdout.endswith(" purged\n")
    assert (mine.info().outstanding, audit.info().outstanding) == (0, all_of_them)


@pytest.mark.spec("D14")
def test_an_administrator_frees_an_exclusive_durable(
    penstock_command: Run, orders: Channel
) -> None:
    audit = orders.durables.create("audit", type="exclusive")
    with audit.subscribe() as held:
        assert held.next_batch(30) is not None

        ended = penstock_command("durable", "unbind", "orders", "audit", "-y")

        assert ended.stdout == "durable audit: 1 subscription ended\n"
        assert audit.info().clients == ()


def test_a_deleted_durable_no_longer_exists(penstock_command: Run, orders: Channel) -> None:
    orders.durables.create("billing", type="shared")

    deleted = penstock_command("durable", "delete", "orders", "billing", "-y")

    assert deleted.stdout == "durable billing deleted\n"
    assert orders.durables.list() == []


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["create", "nowhere", "billing"], "name-does-not-exist"),
        (["create", "orders", "held"], "name-already-bound"),
        (["create", "orders", "billing", "--type", "fast"], "invalid-argument"),
        (["create", "orders", "billing", "--selector", "price >"], "invalid-selector"),
        (["create", "orders", "billing", "--max-deliveries", "3"], "invalid-argument"),
        (["show", "orders", "nobody"], "name-does-not-exist"),
        (["browse", "orders", "nobody"], "name-does-not-exist"),
        (["delete", "orders", "nobody"], "name-does-not-exist"),
        (["unbind", "orders", "nobody"], "name-does-not-exist"),
        (["purge", "orders", "nobody"], "name-does-not-exist"),
        (["create", "orders", "billing", "--strict-order"], "invalid-argument"),
        (["create", "orders", "billing", "--cluster-wide"], "invalid-argument"),
    ],
)
def test_a_refusal_has_its_code(
    penstock_command: Run, orders: Channel, arguments: list[str], code: str
) -> None:
    orders.durables.create("held", type="shared")

    refused = penstock_command("durable", *arguments)

    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr.splitlines()[0].endswith(f"[{code}]")


@pytest.mark.spec("D22")
def test_a_durable_over_a_pattern_is_made_shown_and_ended(
    penstock_command: Run, session: Session
) -> None:
    session.channels.create("shop/eu")
    pattern = ("shop/*", "billing")

    made = penstock_command("durable", "create", *pattern, "--type", "serial")
    assert made.stdout == "durable billing created over shop/*: serial, on 1 channel now\n"
    listed = penstock_command("durable", "list").stdout.splitlines()
    assert listed[-1].split() == ["shop/*", "billing", "serial", "1"]
    (document,) = json.loads(penstock_command("durable", "list", "--format", "json").stdout)
    assert (document["pattern"], document["channels"]) == ("shop/*", 1)
    shown = penstock_command("durable", "show", *pattern)
    assert "survives a restart if its channel does" in shown.stdout
    refused = penstock_command("durable", "delete", "shop/eu", "billing", "--yes")
    assert "belongs to the pattern shop/*" in refused.stderr
    unsure = penstock_command("durable", "delete", *pattern, stdin="n\n")
    assert unsure.exit_code != 0
    assert session.durables.list() != []
    ended = penstock_command("durable", "delete", *pattern, "--yes")
    assert ended.stdout == "durable billing over shop/* deleted\n"
    assert "create one with" in penstock_command("durable", "list").stdout
    assert session.channels.get("shop/eu").durables.list() == []


@pytest.mark.parametrize("type", ["priority", "shared_queued"])
def test_deprecated_types_are_marked(penstock_command: Run, orders: Channel, type: str) -> None:
    created = penstock_command("durable", "create", "orders", "old", "--type", type)
    listed = penstock_command("durable", "list", "orders")
    shown = penstock_command("durable", "show", "orders", "old")
    document = json.loads(
        penstock_command("durable", "show", "orders", "old", "--format", "json").stdout
    )

    assert created.stdout.startswith(f"durable old created: {type} (deprecated), ")
    assert f"{type} (deprecated)" in listed.stdout
    assert f"{type} (deprecated), survives a restart" in shown.stdout
    assert document["deprecated"] is True
    assert orders.durables.get("old").info().deprecated
