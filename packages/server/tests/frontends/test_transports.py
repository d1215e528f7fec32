"""The calls of a transport by connections of every protocol."""

from __future__ import annotations

import pytest

from packages.server.tests.frontends.transports import Scripted
from penstock_server.frontends.shared.transports import LINGER_S, close, host_of
from penstock_testing.loop import pass_time, simulated


@pytest.mark.parametrize(
    ("peername", "host"),
    [
        (("192.0.2.7", 4711), "192.0.2.7"),
        (("::ffff:192.0.2.7", 4711, 0, 0), "192.0.2.7"),
        (("2001:db8::7", 4711, 0, 0), "2001:db8::7"),
        ("", "localhost"),
        (None, "localhost"),
    ],
)
@simulated
async def test_a_host_is_the_address_or_this_machine(peername: object, host: str) -> None:
    assert host_of(Scripted(peername)) == host
    assert host_of(None) == "localhost"


@pytest.mark.parametrize("unsent", [0, 17])
@simulated
async def test_a_peer_that_does_not_take_its_last_bytes_in_time_is_dropped(unsent: int) -> None:
    transport = Scripted()
    transport.unsent = unsent
    close(transport)
    assert transport.is_closing()
    await pass_time(LINGER_S / 2)
    assert not transport.is_aborted

    await pass_time(LINGER_S)

    assert transport.is_aborted == (unsent > 0)


@simulated
async def test_a_closed_transport_is_not_closed_again() -> None:
    transport = Scripted()
    close(transport)
    transport.unsent = 17
    close(transport)
    close(None)
    await pass_time(2 * LINGER_S)

    assert not transport.is_aborted
