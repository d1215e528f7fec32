"""SASLprep (RFC 4013): converts a password to the same bytes whatever machine it was typed on."""

from __future__ import annotations

import stringprep
import unicodedata

from penstock_core.vocabulary.errors import InvalidArgument

_PROHIBITED = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


def prepared(text: str) -> str:
    """Return ``text`` with normalized spaces and composed characters.

    Raises ``InvalidArgument`` for control characters and other prohibited characters, and for text
    that mixes writing directions.
    """
    if text.isascii() and text.isprintable():
        return text
    visible = (character for character in text if not stringprep.in_table_b1(character))
    mapped = "".join(
        " " if stringprep.in_table_c12(character) else character for character in visible
    )
    normal = unicodedata.normalize("NFKC", mapped)
    for index, character in enumerate(normal):
        if any(is_in(character) for is_in in _PROHIBITED):
            raise InvalidArgument(
                f"character {index + 1} of a name or password is not allowed, because it cannot be "
                f"typed on every keyboard"
            )
    if any(stringprep.in_table_d1(character) for character in normal):
        _check_direction(normal)
    return normal


def _check_direction(text: str) -> None:
    """Raise ``InvalidArgument`` if right-to-left text has left-to-right characters (RFC 3454,
    section 6)."""
    is_mixed = any(stringprep.in_table_d2(character) for character in text)
    if is_mixed or not (stringprep.in_table_d1(text[0]) and stringprep.in_table_d1(text[-1])):
        raise InvalidArgument("a name or password mixes left-to-right and right-to-left writing")
