"""Strategies and examples of channel and queue names, many of them unusual."""

from __future__ import annotations

from hypothesis import strategies as st

from penstock_core.vocabulary.errors import InvalidName
from penstock_core.vocabulary.names import destination_name

_SPECIAL = "aZ9 ./-_#@$+:*>?%~,;=&\"'`(){}[]<|!äßñ日本한\u0308😀"
"""Characters with a special meaning in URLs, shells, patterns, labels or addresses, and others that
are not ASCII."""


def texts() -> st.SearchStrategy[str]:
    """Texts of any characters; two thirds are from ``_SPECIAL``."""
    signs = st.one_of(st.sampled_from(_SPECIAL), st.sampled_from(_SPECIAL), st.characters())
    return st.text(signs, min_size=1, max_size=40)


def _name(text: str) -> str | None:
    try:
        return destination_name(text)
    except InvalidName:
        return None


NAMES: st.SearchStrategy[str] = (
    st.one_of(texts(), st.text(st.sampled_from(_SPECIAL), min_size=200, max_size=255))
    .map(_name)
    .filter(lambda name: name is not None)
    .map(str)
)
"""Valid names in their canonical form."""

TRICKY = (
    "orders.new",
    "com.acme.Orders",
    "VirtualTopic.X",
    "two words",
    "größe",
    "日本",
    "eu/orders/日",
    "$orders",
    "topic:/x",
    "a*",
    "100%",
    "a%2Fb",
    "a~2Fb",
    "a,b",
    "what?#now&then=yes",
    'it\'s "quoted"',
    "$(reboot) `ls`",
    "-x",
    ".hidden",
    "x" * 255,
    "日" * 255,
)
"""Names that a protocol or tool could misread without escaping."""
