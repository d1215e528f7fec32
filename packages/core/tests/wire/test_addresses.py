"""Which host names lead to this machine, and which are refused."""

from __future__ import annotations

import pytest

from penstock_core.wire.addresses import is_loopback


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.0.1", "::1"])
def test_what_stays_on_this_machine_is_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "", "localhost.example.org", "here"])
def test_what_may_lead_elsewhere_is_not(host: str) -> None:
    assert not is_loopback(host)
