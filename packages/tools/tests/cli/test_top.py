"""``penstock top``: rates between two looks, the picture, the keys, and both against a realm."""

from __future__ import annotations

import io
import os
import pty
import sys

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console

import penstock
from penstock.client.sync.sync import Channel, Queue
from penstock_testing.stores import StillClock
from penstock_tools.cli.rates import DurableLine, RealmRates, Sampler, StoreLine, rates_between
from penstock_tools.cli.top import View
from tests.commands import Run


def picture(view: View, rates: RealmRates, rows: int = 40, *, columns: int = 120) -> str:
    console = Console(file=io.StringIO(), width=columns, color_system=None)
    console.print(view.render(rates, rows))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def rates_of(session: penstock.Session, orders: Channel, work: Queue) -> RealmRates:
    """Two seconds, in which 20 events come to a channel and 2 leave a queue."""
    clock = StillClock()
    looker = Sampler(session, clock)
    orders.durables.create("billing", start="earliest")
    before = looker.take_sample()
    orders.publish_many([penstock.Event(b"more")] * 20)
    for _ in range(2):
        assert work.pop(timeout=5) is not None
    clock.advance(2_000_000)
    return rates_between(before, looker.take_sample())


def test_rates_are_what_changed_between_two_looks(
    session: penstock.Session, orders: Channel, work: Queue
) -> None:
    rates = rates_of(session, orders, work)

    stores = {line.name: line for line in rates.stores}
    assert stores["orders"].published_per_s == 10.0
    assert stores["orders"].events == 25
    assert stores["work"].left_per_s == 1.0
    assert rates.published_per_s == 10.0
    (billing,) = rates.durables
    assert (billing.channel, billing.outstanding, billing.clients) == ("orders", 25, 0)


def test_the_picture_has_the_busiest_first_and_keys_sort_it(
    session: penstock.Session, orders: Channel, work: Queue
) -> None:
    view, rates = View(), rates_of(session, orders, work)

    busiest = picture(view, rates)
    view.press("l")
    leaving = picture(view, rates)
    view.press("x")

    assert busiest.index("orders ") < busiest.index("work (queue)")
    assert leaving.index("work (queue)") < leaving.index("orders ")
    assert "orders / billing" in busiest
    assert "in 10/s" in busiest
    assert view.order == "left"


def test_space_holds_and_q_ends() -> None:
    view = View()

    view.press(" ")
    assert view.is_paused
    view.press(" ")
    assert not view.is_paused
    view.press("q")
    assert view.is_ended


def test_what_does_not_fit_is_counted(session: penstock.Session) -> None:
    for number in range(20):
        session.channels.create(f"channel-{number}")
    sample = Sampler(session, StillClock()).take_sample()

    shown = picture(View(), rates_between(sample, sample), rows=12)

    assert "16 more not shown" in shown
    assert len(shown.splitlines()) <= 12


def test_once_prints_a_picture_or_a_document(penstock_command: Run, orders: Channel) -> None:
    shown = penstock_command("top", "--once", "--interval", "0.1")
    printed = penstock_command("top", "--once", "--interval", "0.1", "--format", "json")

    assert "orders" in shown.stdout
    document = msgspec.json.decode(printed.stdout)
    assert document["stores"][0]["name"] == "orders"
    assert document["connections"] >= 1


def test_without_a_terminal_it_says_what_to_do(penstock_command: Run) -> None:
    result = penstock_command("top")

    assert result.exit_code == 2
    assert "--once" in result.stderr


@pytest.mark.process
def test_in_a_terminal_it_goes_on_until_q(realm: penstock.Realm, orders: Channel) -> None:
    command = [
        sys.executable,
        "-m",
        "penstock",
        "top",
        "--url",
        realm.listen(),
        "--interval",
        "0.2",
    ]
    process, terminal = pty.fork()
    if process == 0:
        os.environ["TERM"] = "xterm"
        os.execv(sys.executable, command)
    shown = b""
    while b"orders" not in shown:
        shown += os.read(terminal, 65_536)
    os.write(terminal, b"q")
    try:
        while os.read(terminal, 65_536):
            pass
    except OSError:  # the other end has closed it
        pass
    _, status = os.waitpid(process, 0)

    assert os.waitstatus_to_exitcode(status) == 0


def test_long_names_give_way_and_numbers_stay_whole() -> None:
    name = "com.acme.europe.north.warehouse.Orders-that-were-returned/日本/2026"
    store = StoreLine(
        name=name,
        kind="queue",
        published_per_s=123_456,
        left_per_s=9.5,
        events=1_234_567_890,
        bytes=987_654_321_098,
        subscribers=1_234,
        durables=17,
    )
    durable = DurableLine(
        channel=name,
        name="billing-of-the-third-quarter",
        type="shared_queued",
        outstanding=1_234_567_890,
        in_flight=123_456,
        oldest_ms=5_400_000,
        offered_per_s=123_456,
        clients=1_234,
    )
    rates = realm_rates(stores=[store], durables=[durable], realm="[red]realm[/]" * 4)

    shown = picture(View(), rates, columns=80)

    assert all(cell_len(line) <= 80 for line in shown.splitlines())
    for number in ("123,456", "9.5", "1,234,567,890", "919.8 GiB", "1,234", "17", "1.5 h"):
        assert number in shown
    assert "shared_queued" in shown
    assert "com.a" in shown
    assert "(queue)" in shown
    assert "quarter" in shown or "rter" in shown
    wide = picture(View(), rates, columns=250)
    assert f"{name} / billing-of-the-third-quarter" in wide
    assert "[red]realm[/]" in wide


def test_what_looks_like_markup_is_a_name() -> None:
    shown = picture(View(), realm_rates(realm="[/]", stores=[], durables=[]))

    assert "[/]" in shown


def realm_rates(*, realm: str, stores: list[StoreLine], durables: list[DurableLine]) -> RealmRates:
    return RealmRates(
        realm=realm,
        version="1",
        publishing_paused=False,
        connections=3,
        published_per_s=1.0,
        left_per_s=1.0,
        memory_bytes=1,
        memory_bytes_max=2,
        journal_bytes=3,
        stored_bytes=4,
        left_out=0,
        stores=tuple(stores),
        durables=tuple(durables),
    )
