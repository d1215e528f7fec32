"""The folder of a table on disk. Only this module changes files, so that tests can simulate a power
cut at each step."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

from penstock.tables.log import Format, NewFile
from penstock_core.vocabulary.errors import InvalidArgument, StorageFailed, Unavailable
from penstock_core.vocabulary.uris import shown, without_secrets

_REFUSALS: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG))
"""Error numbers of a full, failing or read-only disk, a quota, and a limit of file sizes."""
ICEBERG_SCHEME: Final = "iceberg://"
"""Beginning of the URI of an Iceberg table: ``iceberg://CATALOG/NAMESPACE/TABLE``."""

_COPY_BYTES: Final = 1 << 30
"""Bytes that one call of the operating system copies at most."""


@contextmanager
def storing(uri: str) -> Iterator[None]:
    """Convert an error of a full, failing or read-only disk in the block into ``StorageFailed``
    that names the table."""
    try:
        yield
    except FileNotFoundError:
        raise  # callers conclude that another program has changed the table
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise
        raise StorageFailed(
            f"the table at {shown(uri)} cannot be written: {os.strerror(error.errno)}; the table "
            f"is unchanged; free space or repair the disk, and write again"
        ) from error


@contextmanager
def committing(uri: str) -> Iterator[None]:
    """Convert an error of the disk in the block, which commits to a table or syncs a commit, into
    ``Unavailable`` that names the table. The table may have the commit."""
    try:
        yield
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise
        raise Unavailable(
            f"the table at {shown(uri)} cannot be written: {os.strerror(error.errno)}; it may have "
            f"this commit all the same; free space or repair the disk, and write again under the "
            f"same app and version"
        ) from error


class Folder:
    """A folder on a local or mounted disk. A method returns after its effect is synced, so that the
    effect survives a power cut."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def create(self, name: str) -> BinaryIO:
        """Create a file for writing. Close it with :meth:`finish`."""
        target = self.path / name
        self.make(target.parent)
        return open(target, "xb")

    def finish(self, file: BinaryIO) -> int:
        """Sync and close a completely written file. Return its size in bytes."""
        with file:
            file.flush()
            os.fsync(file.fileno())
            return file.tell()

    @contextmanager
    def new_file(self, name: str, path: str) -> Iterator[NewFile]:
        """Create the data file ``name``, which the block writes; it is synced after the block.

        ``path`` is the path that the file will have in the table.
        """
        sink = self.create(name)
        file = NewFile(path, sink)
        try:
            yield file
        except BaseException:
            sink.close()
            raise
        file.size = self.finish(sink)

    def share(self, source: Path, name: str) -> int:
        """Add a file with the content of ``source``, a file on this machine that never changes: a
        hard link or, where that is not possible, a copy. Return its size in bytes.

        Raises ``FileNotFoundError`` and ``PermissionError`` if ``source`` cannot be read.
        """
        target = self.path / name
        self.make(target.parent)
        with open(source, "rb") as content:
            if not self._link(source, content.fileno(), target):
                self._copy(content, target)
            self.settle(target)
            self.settle(target.parent)
            return os.fstat(content.fileno()).st_size

    def _link(self, source: Path, handle: int, target: Path) -> bool:
        """Add the name ``target`` to the open file ``source``. Return False if the file belongs to
        another user, or the disk does not allow a hard link."""
        status = os.fstat(handle)
        if status.st_uid != os.geteuid():
            return False
        try:
            os.link(source, target)
        except FileNotFoundError:
            raise
        except OSError:  # another disk, a disk without hard links, or too many of them
            return False
        # The users that may list the folder may read files that are written to it, so they may read
        # this file, too. Its time decides when it is removed if no commit adds it.
        os.chmod(target, status.st_mode | target.parent.stat().st_mode & 0o444)
        os.utime(target)
        return True

    def _copy(self, content: BinaryIO, target: Path) -> None:
        """Copy an open file to a new file."""
        try:
            with open(target, "xb") as copy:
                try:
                    # Some file systems share the blocks of the two files.
                    while os.copy_file_range(content.fileno(), copy.fileno(), _COPY_BYTES):
                        pass
                except (OSError, AttributeError):  # other file systems and operating systems
                    content.seek(0)
                    copy.seek(0)
                    shutil.copyfileobj(content, copy)
        except BaseException:
            target.unlink(missing_ok=True)
            raise

    def publish(self, name: str, new_name: str) -> bool:
        """Add the name ``new_name`` to a finished file. Return False if another file already has
        that name."""
        target = self.path / new_name
        try:
            # Unlike a rename, a hard link fails if the name exists: of two writers that commit at
            # the same time only one succeeds.
            os.link(self.path / name, target)
        except FileExistsError:
            return False
        except PermissionError as error:  # some mounted disks do not support hard links
            raise Unavailable(
                f"{self.path}: this disk does not support hard links ({error}), which a plain "
                f"Parquet table needs; use another disk"
                ", or use a Delta table"
            ) from error
        self.settle(target.parent)
        return True

    def move(self, name: str, new_name: str) -> None:
        """Rename a file, replacing a file with the new name. Do nothing if the file does not
        exist."""
        target = self.path / new_name
        self.make(target.parent)
        try:
            os.replace(self.path / name, target)
        except FileNotFoundError:
            return
        self.settle(target.parent)

    def make(self, folder: Path) -> None:
        """Create a folder and its missing parents."""
        if folder.is_dir():
            return
        # Recursive, so that the parent of each new folder is synced.
        self.make(folder.parent)
        folder.mkdir(exist_ok=True)
        self.settle(folder.parent)

    def age_s(self, name: str) -> float:
        """Return the seconds since a file was last written or moved; 0 if it does not exist."""
        try:
            # The change time, because a move does not touch the modification time.
            return time.time_ns() / 1e9 - (self.path / name).stat().st_ctime
        except FileNotFoundError:
            return 0.0

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        (self.path / name).unlink(missing_ok=True)

    def settle(self, path: Path) -> None:
        """Sync the entries of a folder, or the content of a file, to disk."""
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; an empty list if the folder does not exist."""
        try:
            return sorted(os.listdir(self.path / folder))
        except FileNotFoundError:
            return []

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if it does not exist."""
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None

    def has(self, name: str) -> bool:
        return (self.path / name).exists()


def local_path(uri: str) -> Path:
    """Return the folder of a path or ``file://`` URI. Raises ``InvalidArgument`` for other URIs."""
    if "://" not in uri:
        return Path(uri).absolute()
    scheme, _, path = uri.partition("://")
    if scheme != "file" or not path.startswith("/"):
        raise InvalidArgument(
            f"{shown(uri)!r}: a plain Parquet table is a folder on a local or mounted disk; "
            f"on an object "
            "store, use a Delta table"
        )
    return Path(path)


def is_local(uri: str) -> bool:
    """Return whether ``uri`` is a folder on this machine."""
    return "://" not in uri or uri.startswith("file:///")


def is_iceberg(uri: str) -> bool:
    """Return whether ``uri`` names a table of an Iceberg catalog."""
    return uri.startswith(ICEBERG_SCHEME)


def format_of(uri: str, format: Format | Literal[""]) -> Format:
    """Return ``format``. If it is empty, return ``"iceberg"`` for the URI of an Iceberg table,
    otherwise ``"delta"``.

    Raises ``InvalidArgument`` if the URI and the format do not match.
    """
    if format:
        check_format(uri, format)
        return format
    return "iceberg" if is_iceberg(uri) else "delta"


def check_format(uri: str, format: str) -> None:
    """Raise ``InvalidArgument`` if a table at ``uri`` cannot have this format, because only Iceberg
    tables have such URIs, or do not have such URIs."""
    if is_iceberg(uri) != (format == "iceberg"):
        raise InvalidArgument(
            f"format is {format!r} and the table is {shown(uri)!r}; tables of the format "
            f"iceberg, and no others, have URIs such as iceberg://prod/lake/orders"
        )


def iceberg_parts(uri: str) -> tuple[str, ...]:
    """Split the URI of an Iceberg table into the name of the catalog, the levels of the namespace
    and the name of the table. Raises ``InvalidArgument``."""
    parts = tuple(uri.removeprefix(ICEBERG_SCHEME).split("/"))
    if not is_iceberg(uri) or len(parts) < 3 or "" in parts:
        raise InvalidArgument(
            f"{shown(uri)!r} does not name an Iceberg table; write "
            f"{ICEBERG_SCHEME}CATALOG/NAMESPACE/TABLE, such as {ICEBERG_SCHEME}prod/lake/orders"
        )
    return parts


def filesystem_of(uri: str) -> tuple[Any, str]:
    """Return the Arrow file system of ``uri``, and the path in it. Raises ``InvalidArgument``."""
    from pyarrow import ArrowException, fs

    if is_local(uri):
        return fs.LocalFileSystem(), str(local_path(uri))
    try:
        location: tuple[Any, str] = fs.FileSystem.from_uri(uri)
    except (ArrowException, ValueError, OSError) as error:
        # Raised without the cause, whose text may contain the whole URI with credentials.
        reason = without_secrets(str(error), uri)
        raise InvalidArgument(f"{shown(uri)!r} cannot hold a table: {reason}") from None
    return location
