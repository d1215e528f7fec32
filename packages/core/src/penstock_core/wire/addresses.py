"""Classifies network addresses."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """True for a loopback address and for ``localhost``. Other names are not resolved."""
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped.is_loopback  # an IPv4 peer of an IPv6 listener
    return found.is_loopback
