"""Content negotiation: chooses the content type of an answer from the header ``Accept``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from penstock_core.vocabulary.errors import InvalidArgument

JSON: Final = "application/json"
ARROW: Final = "application/vnd.apache.arrow.stream"
NDJSON: Final = "application/x-ndjson"
CSV: Final = "text/csv"
STREAMED: Final = (ARROW, CSV, NDJSON)
"""Content types of streams of events."""
FORM: Final = "application/x-www-form-urlencoded"
_ANY: Final = frozenset(("*/*", "*", "application/*"))


def accepted_form(accept: str, forms: Collection[str]) -> str:
    """Return the content type among ``forms`` to which the header ``accept`` assigns the largest
    weight. A wildcard means JSON. Return an empty text if the client accepts none of the forms.
    Raises ``InvalidArgument`` if a weight is not a number."""
    # A weight of 0 means that the client refuses the form, so only larger weights are chosen.
    best_weight, best_form = 0.0, ""
    for part in accept.split(",") if accept.strip() else ("*/*",):
        name, *parameters = (text.strip() for text in part.lower().split(";"))
        form = JSON if name in _ANY else name
        weight = _weight(parameters)
        if form in forms and weight > best_weight:
            best_weight, best_form = weight, form
    return best_form


def not_accepted(accept: str, forms: Collection[str]) -> InvalidArgument:
    """Return the error for a client that accepts none of ``forms``."""
    available = ", ".join(forms)
    return InvalidArgument(
        f"the answer is not available as {accept[:80]!r}; accept one of {available}"
    )


def check_has_chunks(version: str) -> None:
    """Raise ``InvalidArgument`` for a stream over HTTP/1.0. Its bodies end with the connection, so
    the client could not distinguish a stream that failed in the middle from a complete one."""
    if version == "1.0":
        raise InvalidArgument(
            "a stream of events needs HTTP/1.1; a reverse proxy may need a setting for it, such as "
            "proxy_http_version 1.1 in nginx"
        )


def _weight(parameters: Sequence[str]) -> float:
    """Return the weight ``q`` in the parameters of a content type; 1.0 without one. Raises
    ``InvalidArgument``."""
    for text in parameters:
        if text.startswith("q="):
            try:
                return float(text[2:])
            except ValueError:
                raise InvalidArgument(
                    f"{text[:20]!r} in Accept is not a weight; use a number such as q=0.5"
                ) from None
    return 1.0
