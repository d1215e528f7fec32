"""The newest events that match: none is skipped, none comes twice, each request ends in time."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import penstock
from packages.server.tests.frontends.http.asking import Web
from penstock_server.runtime.subscriptions.realm_limits import SearchLimits

EVENTS = "channels/orders/events"


@pytest.fixture
def orders(session: penstock.Session) -> penstock.Channel:
    return session.channels.create("orders")


def fill(orders: penstock.Channel, count: int, size: int = 0) -> None:
    orders.publish_many(
        [penstock.Event(b"x" * size, properties={"n": n, "m": n % 20}) for n in range(count)]
    )


def ids(page: dict[str, Any]) -> list[int]:
    return [item["event_id"] for item in page["items"]]


def back(web: Web, **query: Any) -> list[dict[str, Any]]:
    """Every page, from the newest to the oldest."""
    pages = [web.get(EVENTS, newest=True, **query)]
    while (after := pages[-1]["next"]) is not None:
        pages.append(web.get(EVENTS, newest=True, after=after, **query))
    return pages


def test_a_match_is_found_however_far_back_it_lies(web: Web, orders: penstock.Channel) -> None:
    fill(orders, 30_000)

    [page] = back(web, selector="n = 7", limit=10)

    assert ids(page) == [7]
    assert page["looked_at"] == {"first_id": 0, "last_id": 29_999}


@pytest.mark.parametrize("selector", ["", "m = 3 OR n < 25"])
def test_older_pages_have_every_event_once(
    web: Web, orders: penstock.Channel, selector: str
) -> None:
    fill(orders, 3_000)

    pages = back(web, selector=selector, limit=70)

    wanted = [n for n in range(3_000) if not selector or n % 20 == 3 or n < 25]
    assert [n for page in reversed(pages) for n in ids(page)] == wanted
    assert all(len(page["items"]) == 70 for page in pages[:-1])


def test_nothing_is_lost_or_repeated_while_events_come_and_go(
    web: Web, orders: penstock.Channel
) -> None:
    fill(orders, 2_000)
    event_ids: list[int] = []
    after = None
    while after != "end":
        more: dict[str, str] = {} if after is None else {"after": after}
        page = web.get(EVENTS, newest=True, limit=50, selector="m IN (0, 5, 10, 15)", **more)
        event_ids = [*ids(page), *event_ids]
        after = page["next"] or "end"
        fill(orders, 100)  # newer than where the search began
        seam = ids(page)[0]
        orders.purge(
            start=max(0, seam - 1), end=seam + 1
        )  # events on both sides of the border, and the ones that were returned
        orders.purge(start=seam + 20, end=seam + 40)

    assert event_ids == [n for n in range(2_000) if n % 5 == 0]


def test_a_search_with_few_matches_ends_with_the_examined_range_and_continues(
    web: Web, realm: penstock.Realm, orders: penstock.Channel
) -> None:
    search = SearchLimits(examined_max=3_000, part_max=1_000)
    realm.running.limits = replace(realm.running.limits, search=search)
    fill(orders, 8_500)

    pages = back(web, selector="n = 7", limit=10)

    assert [ids(page) for page in pages] == [[], [], [7]]
    assert [page["looked_at"] for page in pages] == [
        {"first_id": 5_500, "last_id": 8_499},
        {"first_id": 2_500, "last_id": 5_499},
        {"first_id": 0, "last_id": 2_499},
    ]
    assert [page["next"] for page in pages] == ["5500", "2500", None]


def test_a_page_of_large_events_is_cut_and_the_next_one_begins_there(
    web: Web, realm: penstock.Realm, orders: penstock.Channel
) -> None:
    search = SearchLimits(page_bytes_max=20_000, first_part=5)
    realm.running.limits = replace(realm.running.limits, search=search)
    fill(orders, 40, size=3_000)

    pages = back(web, selector="n >= 0")

    assert [n for page in reversed(pages) for n in ids(page)] == list(range(40))
    assert all(0 < len(page["items"]) < 8 for page in pages)


def test_the_newest_of_a_range_are_those_between_its_ends(
    web: Web, orders: penstock.Channel
) -> None:
    fill(orders, 100)
    published = web.get(EVENTS, start=0, limit=1)["items"][0]["published"]

    assert ids(web.get(EVENTS, newest=True, limit=3, end=49)) == [47, 48, 49]
    assert ids(web.get(EVENTS, newest=True, limit=5, start=98)) == [98, 99]
    assert ids(web.get(EVENTS, newest=True, limit=3, start=published)) == [97, 98, 99]
    assert ids(web.get(EVENTS, newest=True, start="latest")) == []
    assert [ids(page) for page in back(web, limit=2, start=10, end=13)] == [[12, 13], [10, 11]]


def test_a_channel_without_events_has_no_newest(web: Web, orders: penstock.Channel) -> None:
    assert web.get(EVENTS, newest=True) == {"items": [], "next": None, "looked_at": None}
    fill(orders, 3)
    orders.purge()
    [page] = back(web, selector="n = 1")
    assert (page["items"], page["next"]) == ([], None)


def test_a_page_from_the_front_has_the_examined_range_too(
    web: Web, orders: penstock.Channel
) -> None:
    fill(orders, 10)

    page = web.get(EVENTS, limit=2, selector="n IN (1, 4, 7)")

    assert (ids(page), page["next"]) == ([1, 4], "5")
    assert page["looked_at"] == {"first_id": 0, "last_id": 4}
    last = web.get(EVENTS, after=5, selector="n IN (1, 4, 7)")
    assert last["looked_at"] == {"first_id": 5, "last_id": 9}
