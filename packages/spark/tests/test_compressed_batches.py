"""Compressed files, as a task of Spark's reads them by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from packages.server.tests.runtime.compressed_batches import (
    PACKED,
    rows,
    with_a_batch_that_cannot_be_unpacked,
)
from penstock_core.vocabulary.compression import Compression
from penstock_core.vocabulary.errors import Damaged
from penstock_spark.reading.plan import FileRows
from penstock_spark.reading.sealed import stored_batches


@pytest.mark.spec("S")
@pytest.mark.parametrize("compression", PACKED)
def test_it_is_damage_to_those_who_read_files_without_the_realm(
    tmp_path: Path, compression: Compression
) -> None:
    file, index = with_a_batch_that_cannot_be_unpacked(compression)
    (tmp_path / "orders").write_bytes(file)
    spans = tuple(batch_place.span for batch_place in index.batches)
    part = FileRows(
        f"{tmp_path}/orders", len(file), index.schema, batches=index.batches, spans=spans
    )
    read = stored_batches(part)

    assert next(read)[0].equals(rows(0, 100))
    with pytest.raises(Damaged, match=r"orders: events 100-199: .* not the batch"):
        next(read)
