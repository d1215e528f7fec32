"""The format ``penstock``: reads and writes channels as Spark tables.

Spark starts a process for each call of a source, and another one to list the formats. To keep these
starts fast, this module imports almost nothing, and each method imports the modules that it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from penstock_spark.errors.errors import converts_errors
from penstock_spark.session.settling import settle_down

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.sync.sync import Session
    from penstock_spark.options import SinkOptions, SourceOptions
    from penstock_spark.reading.reading import ChannelReader, ChannelStreamReader
    from penstock_spark.writing.writing import ChannelStreamWriter, ChannelWriter


settle_down()  # must be called before the methods import more modules


@converts_errors
class PenstockSource(DataSource):
    """Spark's data source for channels and queues.

    The columns are ``event_id``, ``published``, ``tag``, ``data`` and one for each property.
    :mod:`penstock_spark.options` parses the options.
    """

    default_url: ClassVar[str] = ""
    """URL of the realm for uses without the option ``url``; empty means the URL of the
    environment variable."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        """Return the columns that the channels have now, or those that the option ``columns``
        names."""
        from penstock_spark.columns.projection import extras_of, spark_schema
        from penstock_spark.connections import ask_realm

        options = self._source()
        stored, typed = ask_realm(options.realm, lambda session: _stored_schemas(session, options))
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
        # A write with a number belongs to a program that has already reached the realm.
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
        """Raise ``NameDoesNotExist`` for a missing channel before the tasks start."""
        from penstock_spark.connections import check_exists

        if options.where.channel:
            check_exists(options.where, patient=patient)


def _stored_schemas(session: Session, options: SourceOptions) -> tuple[list[pa.Schema], set[str]]:
    """Return the schema of each channel, and the properties whose integers and floats need separate
    columns. Raises ``NameDoesNotExist`` if no channel matches."""
    from penstock_core.vocabulary.errors import NameDoesNotExist
    from penstock_spark.reading.channels import links_of, typed_properties

    links = links_of(session, options)
    if not links:
        names = session.queues.list() if options.choice.queues else session.channels.list()
        raise NameDoesNotExist(
            f"no {options.choice.kind} matches {options.choice.text}; the realm has "
            f"{', '.join(names) or 'none'}. A stream may start without one if you give it a "
            f".schema(...)"
        )
    stored = {name: link.store.columns() for name, link in links.items()}
    return list(stored.values()), typed_properties(links, stored)


def source_with(url: str) -> type[PenstockSource]:
    """Return a class of the format with ``url`` as its default realm. Raises ``InvalidArgument`` if
    the URL is not valid."""
    if not url:
        return PenstockSource
    from penstock.client.connection.urls import parse_url

    parse_url(url)

    # A class that is defined in a function is pickled by value, with its URL. A class variable of
    # an importable class would be lost in Spark's processes.
    class PenstockSourceWithRealm(PenstockSource):
        default_url = url

    return PenstockSourceWithRealm
