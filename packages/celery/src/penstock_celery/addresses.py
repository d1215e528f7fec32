"""URLs of realms from the parts that kombu and Celery have split."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

PORT = 9_000
_TLS_FILES = ("ca", "certificate", "key")


def realm_url(scheme: str, parts: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Return the URL of a realm.

    ``parts`` has ``hostname``, ``port``, ``userid`` and ``password``, all optional. ``options`` are
    the transport options; their values ``ca``, ``certificate`` and ``key`` name files for TLS."""
    user = quote(parts.get("userid") or "", safe="")
    password = quote(parts.get("password") or "", safe="")
    credentials = f"{user}:{password}@" if password else f"{user}@" if user else ""
    host = parts.get("hostname") or "localhost"
    address = f"[{host}]" if ":" in host else host
    query = urlencode({name: options[name] for name in _TLS_FILES if options.get(name)})
    return (
        f"{scheme}://{credentials}{address}:{parts.get('port') or PORT}"
        f"{'?' if query else ''}{query}"
    )
