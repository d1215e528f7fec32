"""The format ``penstock``: channels as Spark tables, to be read and written."""

from __future__ import annotations

from typing import ClassVar

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from penstock.client.urls import parse_url
from penstock.spark.connections import ask
from penstock.spark.options import SinkOptions, SourceOptions, sink_options, source_options
from penstock.spark.projection import spark_schema
from penstock.spark.reading import ChannelReader, ChannelStreamReader
from penstock.spark.writing import ChannelStreamWriter, ChannelWriter, check_writable


class PenstockSource(DataSource):
    """A channel of a realm. Columns: ``event_id``, ``published``, ``tag``, ``data``, then one for
    each property; the options are those of :mod:`penstock.spark.options`."""

    default_url: ClassVar[str] = ""
    """The realm where the option ``url`` is not given; else the environment names it."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        """All columns of the channel as it is now, or those the option ``columns`` chooses."""
        options = self._source()
        stored = ask(options.where, lambda link: link.channel.columns())
        return spark_schema(
            stored, columns=options.columns, include_headers=options.include_headers
        )

    def reader(self, schema: StructType) -> ChannelReader:
        return ChannelReader(self._source(), schema)

    def streamReader(self, schema: StructType) -> ChannelStreamReader:  # noqa: N802
        return ChannelStreamReader(self._source(), schema)

    def writer(self, schema: StructType, overwrite: bool) -> ChannelWriter:
        return ChannelWriter(self._sink(schema, overwrite=overwrite))

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> ChannelStreamWriter:
        return ChannelStreamWriter(self._sink(schema, overwrite=overwrite))

    def _source(self) -> SourceOptions:
        return source_options(self.options, self.default_url)

    def _sink(self, schema: StructType, *, overwrite: bool) -> SinkOptions:
        options = sink_options(self.options, self.default_url)
        check_writable(schema, overwrite=overwrite)
        ask(options.where, lambda link: link.epoch)  # a missing channel is found before the tasks
        return options


def source_with(url: str) -> type[PenstockSource]:
    """The format with a realm of its own to fall back on. Raises ``InvalidArgument``."""
    if not url:
        return PenstockSource
    parse_url(url)

    # Made here, it travels to Spark's processes by value, the URL with it.
    class PenstockSourceWithRealm(PenstockSource):
        default_url = url

    return PenstockSourceWithRealm
