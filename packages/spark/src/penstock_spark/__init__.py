"""Spark as a client of the realm: sources, sinks, and a Spark session with suitable settings."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from penstock_core.vocabulary.errors import Unavailable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def register(spark: SparkSession, url: str | None = None) -> None:
    """Register the format ``penstock`` in a Spark session.

    ``url`` is the realm for reads and writes without the option ``url``; by default it is the
    current value of the environment variable ``PENSTOCK_URL``. Spark finds the format of an
    installed package without this call; the call sets the default URL, and helps in notebooks.

    Raises ``Unavailable`` if PySpark is not installed, and ``InvalidArgument`` if the URL is not
    valid.
    """
    _check_installed()
    from penstock_spark.errors.errors import convert_errors
    from penstock_spark.options import URL_VARIABLE
    from penstock_spark.source import source_with

    with convert_errors(), _complete_environment(spark), _own_python(spark):
        spark.dataSource.register(source_with(url or os.environ.get(URL_VARIABLE, "")))


def table(
    spark: SparkSession,
    name: str,
    url: str | None = None,
    *,
    access: Literal["auto", "local", "remote"] = "auto",
) -> DataFrame:
    """Return a channel or queue as a table: the events that it stores now (SEM B7).

    Spark's own Parquet reader reads the files of the table if the executors can reach the realm's
    data directory: with ``access="auto"`` if they run on this machine and this machine has the
    files, with ``"local"`` always. Otherwise, and with ``"remote"``, Spark reads through the format
    ``penstock``. Columns and rows are the same. ``url`` is the realm, by default the value of the
    environment variable ``PENSTOCK_URL``.

    Raises ``Unavailable`` if PySpark is not installed, or if ``access`` is ``"local"`` and this
    machine does not have the files; ``InvalidArgument``, ``NameDoesNotExist``, ``CannotConnect``,
    ``LimitReached``, ``StorageFailed``, ``Damaged``.
    """
    _check_installed()
    from penstock_spark.errors.errors import convert_errors
    from penstock_spark.native_tables import native_table
    from penstock_spark.options import Where, realm_url

    with convert_errors():
        return native_table(spark, Where(realm_url(url or ""), name, "either"), access)


def _check_installed() -> None:
    """Raise ``Unavailable`` if PySpark is not installed."""
    if importlib.util.find_spec("pyspark") is None:
        raise Unavailable('PySpark is not installed: pip install "penstock-realm[spark]"')


@contextlib.contextmanager
def _own_python(spark: SparkSession) -> Iterator[None]:
    """Make a local Spark run the format with the Python of this process while the ``with`` block
    runs.

    The Python that ``PYSPARK_PYTHON`` named when Spark started may not have the package.
    """
    from pyspark.sql.utils import is_remote

    from penstock_spark.session.pythons import python_for_spark

    if is_remote() or not str(spark.sparkContext.master).startswith("local"):
        yield
        return
    context = spark.sparkContext
    saved_python, context.pythonExec = context.pythonExec, python_for_spark()
    try:
        yield
    finally:
        context.pythonExec = saved_python


@contextlib.contextmanager
def _complete_environment(spark: SparkSession) -> Iterator[None]:
    """Set every environment variable that Spark adds when a query starts, while the ``with`` block
    registers a data source.

    All queries of a session share the map of variables of the data source. A query that starts adds
    its variables to the map without a lock, while another query may serialize or copy it. If the
    map grows at this moment, it is corrupted (``OptionalDataException``, or ``start`` fails).
    Replacing the value of an existing key is safe.
    """
    from pyspark.sql.utils import is_remote

    if is_remote():
        # With Spark Connect the map is on the server, which makes a new one for each request.
        yield
        return
    environment = spark.sparkContext.environment
    saved_environment = dict(environment)
    environment.update(
        {
            "SPARK_LOCAL_DIRS": tempfile.gettempdir(),
            "SPARK_AUTH_SOCKET_TIMEOUT": os.environ.get("SPARK_AUTH_SOCKET_TIMEOUT", "15"),
            "SPARK_BUFFER_SIZE": os.environ.get("SPARK_BUFFER_SIZE", "65536"),
            "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
        }
        | saved_environment
    )
    try:
        yield
    finally:
        environment.clear()
        environment.update(saved_environment)


__all__ = ["register", "table"]
