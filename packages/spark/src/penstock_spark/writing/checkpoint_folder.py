"""Reads and writes files in the folder of a checkpoint, on a disk or in an object store.

In the driver of a session, Hadoop opens the folder with Spark's settings and secrets. A process of
Spark without a session uses Arrow.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

_HADOOP_S3_SCHEMES: Final = frozenset(("s3a", "s3n"))


class CheckpointFolder(Protocol):
    """A folder of small files."""

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if it does not exist."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Replace the whole content of a file."""
        ...


def folder_at(place: str) -> CheckpointFolder:
    """Return the folder at a path or URI. Raises ``InvalidArgument`` if neither Hadoop nor Arrow
    supports the URI."""
    if "://" not in place:
        return _LocalFolder(Path(place))
    if place.startswith("file://"):
        return _LocalFolder(Path(unquote(urlsplit(place).path)))
    return _hadoop_folder(place) or _arrow_folder(place)


class _LocalFolder:
    """A folder on a local disk."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, name: str) -> bytes | None:
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        # Replaced by a rename, so that a reader never gets a part of the content.
        new_file = self._path / f"{name}.new"
        new_file.write_bytes(content)
        new_file.replace(self._path / name)


class _ArrowFolder:
    """A folder that Arrow's file systems open."""

    def __init__(self, files: Any, root: str) -> None:
        self._files, self._root = files, root

    def read(self, name: str) -> bytes | None:
        try:
            with self._files.open_input_stream(f"{self._root}/{name}") as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        with self._files.open_output_stream(f"{self._root}/{name}") as stream:
            stream.write(content)


class _HadoopFolder:
    """A folder that Hadoop opens in the JVM of the session."""

    def __init__(self, jvm: Any, files: Any, root: Any) -> None:
        self._jvm, self._files, self._root = jvm, files, root

    def read(self, name: str) -> bytes | None:
        path = self._path(name)
        with _os_errors():
            if not self._files.exists(path):
                return None
            stream = self._files.open(path)
            try:
                return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()

    def write(self, name: str, content: bytes) -> None:
        with _os_errors():
            stream = self._files.create(self._path(name), True)  # noqa: FBT003 - a method of Java
            try:
                stream.write(bytearray(content))
            finally:
                stream.close()

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, name)


@contextmanager
def _os_errors() -> Iterator[None]:
    """Convert errors of Java to ``OSError``, as Arrow and Python raise them."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    try:
        yield
    except Py4JError as error:
        raise OSError(str(error)) from error


def _hadoop_folder(place: str) -> CheckpointFolder | None:
    """Return the folder; None in a process without a session, or if Hadoop cannot open the
    place."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None or context._jvm is None:
        return None
    root = context._jvm.org.apache.hadoop.fs.Path(place)
    try:
        with _os_errors():
            files = root.getFileSystem(context._jsc.hadoopConfiguration())
    except OSError:
        return None  # Spark cannot have a checkpoint there either
    return _HadoopFolder(context._jvm, files, root)


def _arrow_folder(place: str) -> CheckpointFolder:
    """Return the folder as Arrow opens it. Arrow knows S3 only by the scheme ``s3``."""
    from penstock.tables.disk import filesystem_of

    scheme, separator, path = place.partition("://")
    return _ArrowFolder(
        *filesystem_of(f"s3{separator}{path}" if scheme in _HADOOP_S3_SCHEMES else place)
    )
