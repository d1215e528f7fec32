"""The format ``penstock``: channels as Spark tables, to be read and written.

Spark makes a process for each thing it asks of a source, one after the other, and one more to see
which formats there are. So each method loads what it needs, and this module next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from penstock_spark.errors.errors import tells_spark
from penstock_spark.session.settling import settle_down

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.sync.sync import Session
    from penstock_spark.options import SinkOptions, SourceOptions
    from penstock_spark.reading.reading import ChannelReader, ChannelStreamReader
    from penstock_spark.writing.writing import ChannelStreamWriter, ChannelWriter


settle_down()  # before the methods load more


@tells_spark
class PenstockSource(DataSource):
    """A channel of a realm. Columns: ``event_id``, ``published``, ``tag``, ``data``, then one for
    each property; the options are those of :mod:`penstock_spark.options`."""

    default_url: ClassVar[str] = ""
    """The realm where the option ``url`` is not given; else the environment names it."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        """All columns of the channels as they are now, or those the option ``columns`` chooses."""
        from penstock_spark.columns.projection import extras_of, spark_schema
        from penstock_spark.connections import ask_realm

        options = self._source()
        stored, typed = ask_realm(options.realm, lambda session: _stored(session, options))
        extras = extras_of(options)
        return spark_schema(stored, columns=options.columns, extras=extras, typed=typed)

    def reader(self, schema: StructType) -> ChannelReader:
        from penstock_spark.reading.reading import ChannelReader

        return ChannelReader(self._source(), schema)

    def streamReader(self, schema: StructType) -> ChannelStreamReader:  # noqa: N802
        from penstock_core.vocabulary.errors import InvalidArgument
        from penstock_spark.reading.reading import ChannelStreamReader
        from penstock_spark.session.starts import StartPositions

        options = self._source()
        if options.ending != StartPositions():
            raise InvalidArgument(
                "endingOffsets and endingTimestamp are for a batch; for a stream that ends, use "
                "trigger(availableNow=True)"
            )
        return ChannelStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> ChannelWriter:
        from penstock_spark.writing.writing import ChannelWriter

        options = self._sink(schema, overwrite=overwrite)
        # A write with a number belongs to a program that has reached the realm before.
        self._check_target(options, patient=options.version is not None)
        return ChannelWriter(options)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> ChannelStreamWriter:
        from penstock_spark.writing.writing import ChannelStreamWriter

        options = self._sink(schema, overwrite=overwrite)
        self._check_target(options, patient=True)
        return ChannelStreamWriter(options)

    def _source(self) -> SourceOptions:
        from penstock_spark.options import source_options

        return source_options(self.options, self.default_url)

    def _sink(self, schema: StructType, *, overwrite: bool) -> SinkOptions:
        from penstock_spark.columns.rows import check_writable
        from penstock_spark.options import sink_options, with_routes

        options = sink_options(self.options, self.default_url)
        options = with_routes(options, schema.names, self.options)
        check_writable(schema, options, overwrite=overwrite)
        return options

    def _check_target(self, options: SinkOptions, *, patient: bool) -> None:
        """Find that the channel is missing before the tasks start."""
        from penstock_spark.connections import check_there

        if options.where.channel:
            check_there(options.where, patient=patient)


def _stored(session: Session, options: SourceOptions) -> tuple[list[pa.Schema], set[str]]:
    """The schemas of the channels, and the properties whose numbers are no one column."""
    from penstock_core.vocabulary.errors import NameDoesNotExist
    from penstock_spark.reading.channels import links_of, typed_properties

    links = links_of(session, options)
    if not links:
        there = session.queues.list() if options.choice.queues else session.channels.list()
        raise NameDoesNotExist(
            f"no {options.choice.kind} fits {options.choice.text}; there are "
            f"{', '.join(there) or 'none'}. A stream may start without one if you give it a "
            f".schema(...)"
        )
    stored = {name: found.store.columns() for name, found in links.items()}
    return list(stored.values()), typed_properties(links, stored)


def source_with(url: str) -> type[PenstockSource]:
    """The format with a realm of its own to fall back on. Raises ``InvalidArgument``."""
    if not url:
        return PenstockSource
    from penstock.client.connection.urls import parse_url

    parse_url(url)

    # Made here, it is sent to Spark's processes by value, with the URL.
    class PenstockSourceWithRealm(PenstockSource):
        default_url = url

    return PenstockSourceWithRealm
