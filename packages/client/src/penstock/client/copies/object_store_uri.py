"""Resolves URIs of folders in object stores and file systems: ``s3://bucket/prefix``, ``gs://``,
``hdfs://``, ``file:///mnt``.

Credentials come from the environment variables of the store's client (``AWS_ACCESS_KEY_ID``,
profiles, roles, …) or from the URI. Credentials in a URI are never part of an error text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from penstock_core.vocabulary.errors import InvalidArgument
from penstock_core.vocabulary.uris import shown, without_secrets

if TYPE_CHECKING:
    from pyarrow import fs

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.+|/.+", re.DOTALL)


class CopyLocation(NamedTuple):
    """A folder in an Arrow file system."""

    files: fs.FileSystem
    folder: str
    """Path of the folder in the file system, without a ``/`` at the end."""
    shown: str
    """The URI for error texts, without credentials."""

    def path(self, name: str) -> str:
        return f"{self.folder}/{name}"


def check_place(uri: str, what: str) -> str:
    """Return ``uri`` if it has the form of a URI. The store is not contacted.

    Raises ``InvalidArgument`` otherwise; its text calls the URI ``what``.
    """
    if not _URI.fullmatch(uri):
        raise InvalidArgument(
            f"{what} is {shown(uri)!r}; give a URI such as s3://bucket/prefix, gs://bucket/prefix, "
            "hdfs://host:8020/path or file:///mnt/realm"
        )
    return uri


def place(uri: str, what: str) -> CopyLocation:
    """Return the folder that a URI names. This may connect to the store.

    Raises ``InvalidArgument``, whose text calls the URI ``what`` and contains no credentials.
    """
    check_place(uri, what)
    # Imported here, because it loads the clients of all stores.
    from pyarrow import fs

    try:
        files, folder = fs.FileSystem.from_uri(uri)
    except (OSError, pa.ArrowException, ValueError) as error:
        # Raised without the cause, whose text may contain the whole URI with credentials.
        reason = without_secrets(first_line(error), uri)
        raise InvalidArgument(f"{what} {shown(uri)} cannot be used: {reason}") from None
    return CopyLocation(files, folder.rstrip("/"), shown(uri))


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text; its name if the text is empty. Further lines of
    errors of a store's client are often a stack trace."""
    text = f"{error}" or type(error).__name__
    return text.splitlines()[0]
