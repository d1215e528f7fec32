"""Copies of a realm's sealed files, at places that are named by a URI."""

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


def blobs_at(uri: str, what: str) -> Blobs:
    """The blobs at a place, e.g. ``s3://bucket/prefix``, or in a folder. Raises
    ``InvalidArgument`` that calls the URI ``what``, also for a realm's data directory;
    ``StorageFailed``."""
    found = place(uri if "://" in uri else os.path.abspath(uri), what)
    _check_no_realm(found, what)
    return FileSystemBlobs(*found, offload=asyncio.to_thread)


def copy_files(session: Session, uri: str, *, prune: bool = False) -> CopyResult:
    """Bring the copy of a realm's sealed files at a place up to date; see
    :func:`penstock.client.copies.copy_files.copy_files`."""
    return session.copy_files(blobs_at(uri, "--to"), prune=prune)


def _check_no_realm(found: CopyLocation, what: str) -> None:
    """Refuse a realm's own data directory: a copy would overwrite or remove its files."""
    try:
        infos = found.files.get_file_info([found.path(name) for name in _OF_A_REALM])
    except OSError as error:
        reason = f"{error}".partition("\n")[0]
        raise StorageFailed(f"{found.shown} could not be read: {reason}") from error
    if any(info.type != fs.FileType.NotFound for info in infos):
        raise InvalidArgument(
            f"{what} {found.shown} is the data directory of a realm; give an empty folder or "
            f"bucket prefix"
        )
