"""The bounds of values from clients are at least as large as the limits of the rules."""

from __future__ import annotations

import msgspec

from penstock_core import bounds
from penstock_core.ids.ids import BoundedSpans, Span


def test_the_id_after_the_largest_fits_64_bits() -> None:
    assert bounds.EVENT_ID_MAX + 1 == 2**63 - 1


def test_as_many_ranges_as_may_be_fit_the_header_of_a_request() -> None:
    largest = Span(bounds.EVENT_ID_MAX, bounds.EVENT_ID_MAX + 1)
    spans = (largest,) * bounds.SPANS_MAX

    encoded = msgspec.msgpack.encode(spans)

    assert len(encoded) < bounds.HEADER_BYTES_MAX
    assert msgspec.msgpack.decode(encoded, type=BoundedSpans) == spans
