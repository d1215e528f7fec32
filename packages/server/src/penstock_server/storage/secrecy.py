"""File permissions of a data directory: only the realm's user may read its secrets.

Secrets are password verifiers and the audit log. New files get the right permissions. In a
directory of an earlier version, or one that was restored or copied, permissions are corrected when
it is opened.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from penstock_core.loggers import logger
from penstock_server.storage.disk import PRIVATE_DIRECTORY, PRIVATE_FILE

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


_log = logger("penstock.storage")


def mend(root: str) -> None:
    """Remove other users' access to secrets in the data directory ``root``, and log the former
    permissions."""
    access = openness(Path(root))
    if access:
        _log.warning(
            "secrets.open_directory", path=root, others=access, remedy=f"chmod g-w,o= {root}"
        )
    for path, mode in _secret_paths(Path(root)):
        _mend(path, mode)


def openness(root: Path) -> str:
    """Describe the permissions of a data directory that are too open; empty if no permission is.
    The group may read, for DuckDB and Spark, but not write. Other users may do neither.
    """
    mode = root.stat().st_mode
    faults = []
    if mode & stat.S_IWGRP:
        faults.append("its group may write to it")
    if mode & stat.S_IWOTH:
        faults.append("every user may write to it")
    elif mode & stat.S_IRWXO:
        faults.append("every user may read it")
    return ", ".join(faults)


def _secret_paths(root: Path) -> Iterator[tuple[Path, int]]:
    """Yield the paths of files and folders with secrets, each with the permissions it should
    have."""
    registry = root / "registry"
    if registry.is_dir():
        yield registry, PRIVATE_DIRECTORY
        yield from ((path, PRIVATE_FILE) for path in sorted(registry.iterdir()))
    quarantine = root / "quarantine"
    if quarantine.is_dir():  # copies of damaged records
        yield from ((path, PRIVATE_FILE) for path in sorted(quarantine.glob("registry-*")))
    yield from ((path, PRIVATE_FILE) for path in sorted(root.glob("audit*.ndjson")))


def _mend(path: Path, mode: int) -> None:
    """Restrict the permissions of one file or folder to ``mode``, and log the change."""
    present = path.lstat().st_mode
    if stat.S_ISLNK(present) or not present & _OTHERS:  # chmod would follow a link
        return
    former_mode = f"{stat.S_IMODE(present):04o}"
    try:
        path.chmod(mode)
    except OSError as error:
        _log.error("secrets.exposed", path=str(path), mode=former_mode, reason=str(error))
    else:
        _log.warning("secrets.mended", path=str(path), mode=former_mode)
