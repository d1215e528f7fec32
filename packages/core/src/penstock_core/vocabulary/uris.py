"""URIs of places and servers as they may stand in errors, logs and lists: without their secrets.

Whoever signs in may be named before the ``@``, and keys may be given as parameters.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qsl, unquote, urlencode

_PUBLIC: Final = frozenset(("scheme", "region", "endpoint_override"))
"""Parameters whose values may be shown."""


def shown(uri: str) -> str:
    """A URI as it may be shown: without who asks, and without parameters."""
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return uri.partition("?")[0]
    whole, _, _ = rest.partition("?")
    _, signs_in, place = whole.rpartition("@")
    if "@" in rest[len(whole) :]:  # a secret with a ?, or a parameter with an @
        return f"{scheme}://***"
    return f"{scheme}://***@{place}" if signs_in else f"{scheme}://{whole}"


def below(uri: str, path: str) -> str:
    """The URI of what lies at a path below a place, for somebody who signs in there with rights of
    their own: without who asks, and without secret parameters. Empty where the place cannot be told
    from a secret."""
    place = shown(uri).replace("://***@", "://").rstrip("/")
    if place.endswith("://***"):
        return ""
    query = uri.partition("?")[2]
    public = urlencode([each for each in parse_qsl(query) if each[0] in _PUBLIC])
    return f"{place}/{path}?{public}" if public else f"{place}/{path}"


def without_secrets(text: str, uri: str) -> str:
    """A message about a URI, without the parts of the URI that are not shown."""
    text = text.replace(uri, shown(uri))
    rest = uri.partition("://")[2]
    whole, _, query = rest.partition("?")
    pieces = re.split("[:@]", whole.rpartition("@")[0]) + [
        value for key, value in parse_qsl(query) if key not in _PUBLIC
    ]
    for piece in sorted({*pieces, *map(unquote, pieces)} - {""}, key=len, reverse=True):
        text = text.replace(piece, "***")
    return text
