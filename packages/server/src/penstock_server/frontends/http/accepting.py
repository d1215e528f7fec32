"""The form of an answer that a client accepts, as its header ``Accept`` says."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from penstock_core.vocabulary.errors import InvalidArgument

JSON: Final = "application/json"
_ANY: Final = frozenset(("*/*", "*", "application/*"))


def accepted_form(accept: str, forms: Collection[str]) -> str:
    """The content type of ``forms`` that has the largest weight, JSON for a wildcard; empty if the
    client accepts none of them. Raises ``InvalidArgument`` for a weight that is not a number."""
    best, chosen = 0.0, ""
    for part in accept.split(",") if accept.strip() else ("*/*",):
        name, *parameters = (text.strip() for text in part.lower().split(";"))
        form = JSON if name in _ANY else name
        weight = _weight(parameters)
        if form in forms and weight > best:
            best, chosen = weight, form
    return chosen


def not_accepted(accept: str, forms: Collection[str]) -> InvalidArgument:
    """The error for a client that accepts none of ``forms``."""
    available = ", ".join(forms)
    return InvalidArgument(f"this does not come as {accept[:80]!r}; accept one of {available}")


def _weight(parameters: Sequence[str]) -> float:
    for text in parameters:
        if text.startswith("q="):
            try:
                return float(text[2:])
            except ValueError:
                raise InvalidArgument(f"{text[:20]!r} in Accept is not a weight") from None
    return 1.0
