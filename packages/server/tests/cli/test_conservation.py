"""The printed sum of the published events (SEM T8)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock_core.api.channels import ChannelInfo, StorageInfo
from penstock_core.channel.conservation import MEANINGS
from penstock_core.vocabulary.counters import Counters
from penstock_core.vocabulary.definitions import Definition
from penstock_server.cli.stores.facts import conservation_terms, equation, write_sum
from penstock_server.runtime.subscriptions.documents import channel_document


def info_of(counters: Counters, *, events: int, overdue: int = 0) -> ChannelInfo:
    return ChannelInfo(
        name="c",
        definition=Definition(),
        first_event_id=None,
        last_event_id=-1,
        events=events,
        durables=0,
        subscribers=0,
        counters=counters,
        storage=StorageInfo(tail_bytes=0, sealed_bytes=0, sealed_files=0, memory_bytes=0),
        overdue=overdue,
    )


def test_every_way_to_leave_is_a_term() -> None:
    ways = set(Counters.__struct_fields__) - {"published", "redelivered"}

    assert set(MEANINGS) == ways | {"live", "overdue"}


@pytest.mark.spec("T8")
@pytest.mark.parametrize("name", [name for name in MEANINGS if name not in ("live", "overdue")])
def test_each_term_is_in_the_sum(name: str) -> None:
    counters = replace(Counters(), published=3, **{name: 2})

    assert equation(info_of(counters, events=1)) == f"3 published = 1 live + 2 {name}"


@pytest.mark.spec("T8")
def test_overdue_events_are_in_the_sum() -> None:
    info = info_of(Counters(published=1_003), events=1_000, overdue=3)

    assert equation(info) == "1,003 published = 1,000 live + 3 overdue"
    assert channel_document(info)["conservation"]["holds"] is True


def test_nothing_published_is_a_sum_too() -> None:
    assert equation(info_of(Counters(), events=0)) == "0 published = 0 live"


def test_a_sum_that_is_wrong_is_said_to_be() -> None:
    info = info_of(Counters(published=5, purged=1, redelivered=7), events=2)

    assert equation(info).startswith("5 published != 3 = 2 live + 1 purged; this must not happen")
    assert channel_document(info)["conservation"]["holds"] is False


def test_the_lines_above_the_sum_add_up_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    info = info_of(Counters(published=1_200, consumed=1_100, dead=70, purged=20), events=10)

    write_sum(info)
    head, *lines, total = capsys.readouterr().out.splitlines()

    assert head == "conservation"
    assert sum(int(line.split()[1].replace(",", "")) for line in lines) == 1_200
    assert [line.split()[0] for line in lines] == [
        term.name for term in conservation_terms(info) if term.name != "overdue"
    ]
    assert total == "  1,200 published = 10 live + 1,100 consumed + 70 dead + 20 purged"
