"""Places for connections: who gives way, who does not, and who may look in at any time."""

from __future__ import annotations

import pytest

from penstock_server.frontends.http.places import SPARE, ConnectionPlaces, network_of


class Connection:
    def __init__(self, address: str, heard_s: float = 0.0, *, owes_data: bool = True) -> None:
        self.address = address
        self.heard_s = heard_s
        self.is_spare = False
        self.owes_data = owes_data
        self.was_dropped = False

    def drop(self) -> None:
        self.was_dropped = True


def busy(address: str) -> Connection:
    return Connection(address, owes_data=False)


def test_the_connection_waited_for_longest_is_dropped() -> None:
    places = ConnectionPlaces(2, 2)
    first, second, third = (
        Connection("10.0.0.1", 3),
        Connection("10.0.0.2", 1),
        Connection("10.0.0.3", 4),
    )

    assert all(places.take(connection) for connection in (first, second, third))

    assert [connection.was_dropped for connection in (first, second, third)] == [False, True, False]


def test_the_busiest_address_gives_way_before_those_of_others() -> None:
    places = ConnectionPlaces(4, 4)
    alone = Connection("10.0.0.1", heard_s=0)
    many = [Connection("10.0.0.2", heard_s=number) for number in range(1, 4)]
    assert all(places.take(connection) for connection in (alone, *many))

    assert places.take(Connection("10.0.0.3"))

    assert [connection.was_dropped for connection in (alone, *many)] == [False, True, False, False]


def test_an_address_at_its_share_gives_way_itself_or_is_refused() -> None:
    places = ConnectionPlaces(10, 2)
    other_connection, working, waiting = (
        Connection("10.0.0.1"),
        busy("10.0.0.2"),
        Connection("10.0.0.2"),
    )
    assert all(places.take(connection) for connection in (other_connection, working, waiting))

    assert places.take(busy("10.0.0.2"))
    assert waiting.was_dropped
    assert not other_connection.was_dropped
    assert not places.take(Connection("10.0.0.2"))
    assert places.take(Connection("10.0.0.3"))


def test_while_all_work_a_few_are_let_in_to_look() -> None:
    places = ConnectionPlaces(2, 100)
    working = [busy("10.0.0.1"), busy("10.0.0.2")]
    assert all(places.take(connection) for connection in working)
    looking = [busy("10.0.0.3") for _ in range(SPARE)]

    assert all(places.take(connection) for connection in looking)
    assert all(connection.is_spare for connection in looking)
    assert not places.take(Connection("10.0.0.4"))
    places.leave(looking[0])
    assert places.take(Connection("10.0.0.4"))
    assert not any(connection.was_dropped for connection in working)


def test_leaving_makes_room_once() -> None:
    places = ConnectionPlaces(1, 1)
    first, second = busy("10.0.0.1"), busy("10.0.0.1")
    assert places.take(first)
    assert not places.take(second)

    places.leave(second)
    places.leave(first)
    places.leave(first)

    assert places.take(second)
    assert not second.is_spare


@pytest.mark.parametrize(
    ("first_address", "second_address", "are_one"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("no address", "no address", True),
    ],
)
def test_addresses_of_one_network_count_as_one(
    first_address: str, second_address: str, *, are_one: bool
) -> None:
    assert (network_of(first_address) == network_of(second_address)) == are_one
