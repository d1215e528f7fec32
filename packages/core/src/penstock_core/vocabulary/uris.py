"""URIs without secrets, for errors, logs and lists.

A user and a password may precede the ``@``, and parameters may contain secret keys.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qsl, unquote, urlencode

_PUBLIC: Final = frozenset(("scheme", "region", "endpoint_override"))
"""Parameters whose values may be shown."""


def shown(uri: str) -> str:
    """Return a URI without user, password and parameters."""
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return uri.partition("?")[0]
    address, _, _ = rest.partition("?")
    # The last @ is the separator, because a password may contain others.
    _, signs_in, place = address.rpartition("@")
    if "@" in rest[len(address) :]:  # a secret with a ?, or a parameter with an @
        return f"{scheme}://***"
    return f"{scheme}://***@{place}" if signs_in else f"{scheme}://{address}"


def below(uri: str, path: str) -> str:
    """Return the URI of a path below ``uri``, for clients that sign in with their own rights:
    without user, password and secret parameters. Empty if the place cannot be separated from a
    secret."""
    place = shown(uri).replace("://***@", "://").rstrip("/")
    if place.endswith("://***"):
        return ""
    query = uri.partition("?")[2]
    public = urlencode([pair for pair in parse_qsl(query) if pair[0] in _PUBLIC])
    return f"{place}/{path}?{public}" if public else f"{place}/{path}"


def without_secrets(text: str, uri: str) -> str:
    """Return a message about a URI without the secret parts of the URI."""
    text = text.replace(uri, shown(uri))
    rest = uri.partition("://")[2]
    address, _, query = rest.partition("?")
    secrets = re.split("[:@]", address.rpartition("@")[0]) + [
        value for key, value in parse_qsl(query) if key not in _PUBLIC
    ]
    # The longest first: a secret may contain another one, whose removal would leave a part of it.
    for secret in sorted({*secrets, *map(unquote, secrets)} - {""}, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text
