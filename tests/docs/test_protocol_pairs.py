"""The page about parts that a protocol cannot express: each row is tested by its protocol."""

from __future__ import annotations

from tests.docs.protocol_pairs import PROTOCOLS, rows, rows_of


def test_every_row_belongs_to_a_protocol_whose_tests_go_through_its_rows() -> None:
    """The tests are `test_protocol_pairs.py` of the packages `amqp` and `mqtt`, and of the HTTP
    front end."""
    tested = {row for protocol in PROTOCOLS for row in rows_of(protocol)}

    assert set(rows()) == tested
    assert all(rows_of(protocol) for protocol in PROTOCOLS)
