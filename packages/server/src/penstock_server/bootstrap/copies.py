"""Copies a realm's sealed files to a place that a URI names."""

from __future__ import annotations

import asyncio
import os
from typing import Final

from pyarrow import fs

from penstock.client.copies.copy_files import CopyResult
from penstock.client.copies.object_store_uri import CopyLocation, place
from penstock.client.sync.sync import Session
from penstock_core.vocabulary.errors import InvalidArgument, StorageFailed
from penstock_core.vocabulary.ports import Blobs
from penstock_server.storage.file_systems import FileSystemBlobs

_OF_A_REALM: Final = ("registry", "journal", "LOCK")
"""Names in a folder or bucket that only a realm's data directory has."""


def blobs_at(uri: str, what: str) -> Blobs:
    """Return the blobs at a URI such as ``s3://bucket/prefix``, or in a folder.

    Raises ``StorageFailed``, and ``InvalidArgument`` for an invalid URI and for a realm's data
    directory; ``what`` names the URI in the error text.
    """
    location = place(uri if "://" in uri else os.path.abspath(uri), what)
    _check_no_realm(location, what)
    return FileSystemBlobs(*location, offload=asyncio.to_thread)


def copy_files(session: Session, uri: str, *, prune: bool = False) -> CopyResult:
    """Update the copy of a realm's sealed files at ``uri``; see
    :func:`penstock.client.copies.copy_files.copy_files`."""
    return session.copy_files(blobs_at(uri, "--to"), prune=prune)


def _check_no_realm(location: CopyLocation, what: str) -> None:
    """Refuse a realm's data directory, because a copy would overwrite or remove its files."""
    try:
        infos = location.files.get_file_info([location.path(name) for name in _OF_A_REALM])
    except OSError as error:
        reason = f"{error}".partition("\n")[0]
        raise StorageFailed(f"{location.shown} could not be read: {reason}") from error
    if any(info.type != fs.FileType.NotFound for info in infos):
        raise InvalidArgument(
            f"{what} {location.shown} is the data directory of a realm; use an empty folder or "
            f"bucket prefix"
        )
