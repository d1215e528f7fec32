"""Where an address leads."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether what an address or ``localhost`` names is this very machine; other names are not
    looked up."""
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped.is_loopback  # IPv4 as an IPv6 listener sees it
    return found.is_loopback
