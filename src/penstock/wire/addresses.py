"""Where an address leads."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether what an address or ``localhost`` names is this very machine; other names are not
    looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
