"""Names and paths of the column layout."""

from __future__ import annotations

import pytest

from penstock_core.bounds import PROPERTY_NAME_CHARACTERS_MAX
from penstock_core.columns.schema import layout
from penstock_core.columns.schema.layout import (
    BODY,
    HEADERS,
    STAMPED,
    check_property_name,
    key_path,
)
from penstock_core.vocabulary.errors import InvalidEvent


def test_paths_escape_what_they_are_made_of() -> None:
    assert key_path("", "a") == "a"
    assert key_path("lines[3]", "sku") == "lines[3].sku"
    assert key_path("", "a.b[0]\\") == "a\\.b\\[0\\]\\\\"


@pytest.mark.spec("E1", "E3")
def test_the_document_names_every_column() -> None:
    text = layout.__doc__ or ""

    assert all(f"\n{name} " in text for name in [*STAMPED, *BODY])
    assert "priority" not in HEADERS


@pytest.mark.spec("E2")
def test_a_name_is_a_string_that_is_not_empty_or_long_or_reserved() -> None:
    for name in ("a", "ü", "$pen", "a.b", "event_id"):
        check_property_name(name)
    check_property_name("x" * PROPERTY_NAME_CHARACTERS_MAX)
    for wrong in (
        "x" * (PROPERTY_NAME_CHARACTERS_MAX + 1),
        "",
        1,
        None,
        "$penstock",
        "$penstock.x",
        "\udc00",
    ):
        with pytest.raises(InvalidEvent, match="name"):
            check_property_name(wrong)
