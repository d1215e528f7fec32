"""The user's cache folder: launcher scripts, links and class archives, which can be recreated.

The folder stays between runs and may be deleted at any time. It contains no data of a realm.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from penstock_core.vocabulary.errors import Unavailable


def cache_directory() -> Path:
    """Return the user's cache folder for Penstock; create it if it does not exist.

    The folder is ``$XDG_CACHE_HOME/penstock``, or that of the platform without the variable. If it
    is not writable (a read-only home, a service account), a folder for this user in the temporary
    directory is used. Raises ``Unavailable`` if no folder can be used.
    """
    rejected = []
    for candidate in (_users_cache(), Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}"):
        try:
            candidate.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Programs are started from here, so other users must not be able to write to it.
            folder_stat = candidate.stat()
        except OSError as error:
            rejected.append(f"{candidate}: {error.strerror}")
            continue
        if folder_stat.st_uid == os.getuid() and not folder_stat.st_mode & (
            stat.S_IWGRP | stat.S_IWOTH
        ):
            if os.access(candidate, os.W_OK | os.X_OK):
                return candidate
            rejected.append(f"{candidate}: not writable")
        else:
            rejected.append(f"{candidate}: other users may write there")
    raise Unavailable(
        "Spark needs a writable cache folder, and none can be used "
        f"({'; '.join(rejected)}); name one with XDG_CACHE_HOME"
    )


def fingerprint(*parts: object) -> str:
    """Return a short text that differs if any of ``parts`` differs."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:12]


def write_once(path: Path, text: str, *, mode: int = 0o600) -> Path:
    """Write a file, unless it has this text and this mode already; return its path. Several
    processes may do this at the same time."""
    with contextlib.suppress(OSError):
        if path.read_text() == text and stat.S_IMODE(path.stat().st_mode) == mode:
            return path
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Written aside and renamed, so that other processes never start a partial script.
    handle, draft_name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
        os.fchmod(file.fileno(), mode)
    Path(draft_name).replace(path)
    return path


def link_once(path: Path, targets: Mapping[str, Path]) -> Path:
    """Create a folder with a link to each of ``targets``, by name; return its path.

    Several processes may do this at the same time: each adds the missing links, and none removes a
    link. The name of the folder must identify everything that the targets depend on, so that an
    existing folder is valid unless its targets were deleted.
    """
    if missing := [name for name in targets if not (path / name).exists()]:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as draft_folder:
            for name in missing:
                link = Path(draft_folder) / name
                link.symlink_to(targets[name])
                link.replace(path / name)
    return path


def _users_cache() -> Path:
    if cache_home := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache_home) / "penstock"
    try:
        home = Path.home()
    except RuntimeError:  # a service account without a home
        return Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}"
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "penstock"
