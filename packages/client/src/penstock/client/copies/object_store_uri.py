"""Places named by a URI: ``s3://bucket/prefix``, ``gs://``, ``hdfs://``, ``file:///mnt``.

Credentials come from the store's own environment variables (``AWS_ACCESS_KEY_ID``, profiles, roles,
…) or from the URI; credentials in a URI are never shown.
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
    files: fs.FileSystem
    folder: str
    """Path of the place in the file system, without a ``/`` at the end."""
    shown: str
    """The URI, as it may be shown."""

    def path(self, name: str) -> str:
        return f"{self.folder}/{name}"


def check_place(uri: str, what: str) -> str:
    """The URI as it was given, if it may be one; nothing is asked. Raises ``InvalidArgument``
    that calls it ``what``."""
    if not _URI.fullmatch(uri):
        raise InvalidArgument(
            f"{what} is {shown(uri)!r}; it looks like s3://bucket/prefix, gs://bucket/prefix, "
            "hdfs://host:8020/path or file:///mnt/realm"
        )
    return uri


def place(uri: str, what: str) -> CopyLocation:
    """Connect with a place. May ask the store; raises ``InvalidArgument`` that calls the URI
    ``what``, and says nothing that is secret."""
    check_place(uri, what)
    from pyarrow import fs  # imports the clients of all stores, so only when one is needed

    try:
        files, folder = fs.FileSystem.from_uri(uri)
    except (OSError, pa.ArrowException, ValueError) as error:
        # Not as its cause, because the cause's text may have the whole URI.
        reason = without_secrets(first_line(error), uri)
        raise InvalidArgument(f"{what} {shown(uri)} cannot be used: {reason}") from None
    return CopyLocation(files, folder.rstrip("/"), shown(uri))


def first_line(error: BaseException) -> str:
    """The first line of an error of a store's client; further lines are often its own stack."""
    text = f"{error}" or type(error).__name__
    return text.splitlines()[0]
