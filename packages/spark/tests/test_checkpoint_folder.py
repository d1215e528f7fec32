"""Files in the folder of a checkpoint, wherever the checkpoint is."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.tables import Table
from penstock_core.vocabulary.errors import IllegalState, InvalidArgument
from penstock_spark.pipelines.step import MicroBatch
from penstock_spark.pipelines.written_tables import WrittenTables
from penstock_spark.writing.batch_content import UnknownContent, content_of
from penstock_spark.writing.checkpoint_folder import folder_at
from tests.objects import object_store

OFFSETS = b'v1\n{}\n{"c":{"orders":{"e":"r/1","n":5}},"v":1}'


@pytest.mark.parametrize("scheme", ["", "file://", "s3://", "s3a://"])
def test_a_file_is_read_and_replaced(tmp_path: Path, scheme: str) -> None:
    with object_store() as store:
        on_store = store.uri("bucket/step").replace("s3://", scheme)
        folder = folder_at(on_store if scheme.startswith("s3") else f"{scheme}{tmp_path}")

        assert folder.read("tables.json") is None
        for content in (b"{}", b'{"t":"app"}'):
            folder.write("tables.json", content)
            assert folder.read("tables.json") == content


def test_a_scheme_that_nobody_knows_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="'strange://bucket/step' cannot hold a table"):
        folder_at("strange://bucket/step")


def test_the_content_of_a_micro_batch_is_known_of_a_checkpoint_on_a_store(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "3").write_bytes(OFFSETS)
    local = content_of(str(tmp_path), 3)
    assert local

    with object_store() as store:
        store.objects["bucket/step/offsets/3"] = OFFSETS

        assert content_of(store.uri("bucket/step").replace("s3://", "s3a://"), 3) == local
        with pytest.warns(UnknownContent, match="micro-batch 4 of s3://.* is not known"):
            assert content_of(store.uri("bucket/step"), 4) == ""


def test_a_micro_batch_whose_checkpoint_cannot_be_read_is_warned_about() -> None:
    where = "of strange://.*store/step"
    with pytest.warns(UnknownContent, match=f"micro-batch 7 {where} is not known") as caught:
        assert content_of("strange://me:secret@store/step", 7) == ""

    assert "secret" not in str(caught[0].message)


def test_a_temporary_checkpoint_needs_no_warning() -> None:
    assert content_of("", 7) == ""


@pytest.mark.parametrize("suffix", ["", ".compact"])
def test_the_content_of_a_micro_batch_over_files_is_the_files(tmp_path: Path, suffix: str) -> None:
    folder = folder_at(str(tmp_path))
    for name in ("offsets", "sources/1"):
        (tmp_path / name).mkdir(parents=True)
    folder.write("offsets/3", b'v1\n{}\n-\n{"logOffset":7}')
    contents = {content_of(str(tmp_path), 3)}
    for files in (b'v1\n{"path":"a","batchId":7}', b'v1\n{"path":"b","batchId":7}'):
        folder.write(f"sources/1/7{suffix}", files)
        contents.add(content_of(str(tmp_path), 3))
        assert content_of(str(tmp_path), 3) in contents

    assert len(contents) == 3


def test_a_step_whose_checkpoint_is_on_a_store_notices_that_its_table_was_removed(
    tmp_path: Path,
) -> None:
    batch = MicroBatch("app", 1)
    with object_store() as store:
        step = store.uri("bucket/step")
        WrittenTables(step).wrote(Table.open(str(tmp_path / "t"), "parquet"), batch)

        again = WrittenTables(step)
        removed = Table.open(str(tmp_path / "t"), "parquet")

        with pytest.raises(
            IllegalState, match=r"was removed or replaced.*remove s3://\*\*\*@bucket"
        ):
            again.check(removed, batch)
        again.check(removed, MicroBatch("a new checkpoint", 0))
