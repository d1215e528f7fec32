"""The rows of the guide's page about parts that a protocol cannot express."""

from __future__ import annotations

import re
from typing import Final

from tests.docs.pages import ROOT

PairRow = tuple[str, str, str]
"""A part of a message, the protocol it comes from, and the protocol it goes to ("all" for all
protocols)."""

PROTOCOLS: Final = ("AMQP", "MQTT", "HTTP")
_PAGE: Final = ROOT / "docs/guide/protocol-pairs.md"


def rows() -> list[PairRow]:
    """Return every row of the page."""
    table_rows = []
    for line in _PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 5 and cells[0] not in ("part", "---"):
            table_rows.append((cells[0], cells[1], cells[2]))
    return table_rows


def rows_of(protocol: str) -> list[PairRow]:
    """Return the rows from or to a protocol."""
    return [row for row in rows() if protocol in row[1:]]
