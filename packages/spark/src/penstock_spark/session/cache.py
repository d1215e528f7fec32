"""The folder for what can always be made again: launcher scripts, links, class archives.

One per user, kept between runs, safe to delete at any time. Nothing in it belongs to a realm.
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
    """The user's cache folder for Penstock, made if need be.

    ``$XDG_CACHE_HOME/penstock``, else the platform's own place; where that cannot be written
    (a read-only home, a service account), a folder of this user's in the temporary directory.

    Raises ``Unavailable`` when neither can be had.
    """
    tried = []
    for candidate in (_users_cache(), Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}"):
        try:
            candidate.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Programs are started from here, so it must not be a folder that others can fill.
            state = candidate.stat()
        except OSError as error:
            tried.append(f"{candidate}: {error.strerror}")
            continue
        if state.st_uid == os.getuid() and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            if os.access(candidate, os.W_OK | os.X_OK):
                return candidate
            tried.append(f"{candidate}: not writable")
        else:
            tried.append(f"{candidate}: other users may write there")
    raise Unavailable(
        "Spark needs a folder for small files that can be made again, and none can be used "
        f"({'; '.join(tried)}). Name one with XDG_CACHE_HOME."
    )


def fingerprint(*parts: object) -> str:
    """A short name that differs when any of the parts differs."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:12]


def write_once(path: Path, text: str, *, mode: int = 0o600) -> Path:
    """The file with exactly this text. Safe when many processes do it at the same time."""
    with contextlib.suppress(OSError):
        if path.read_text() == text and stat.S_IMODE(path.stat().st_mode) == mode:
            return path
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
        os.fchmod(file.fileno(), mode)
    Path(draft).replace(path)
    return path


def link_once(path: Path, targets: Mapping[str, Path]) -> Path:
    """A folder with these links. Safe when many processes make it at the same time: each puts the
    links that are missing into the folder, and none takes one away that another has found.

    Put whatever the targets depend on into the folder's name, so that an existing folder is right
    unless its targets are gone.
    """
    if missing := [name for name in targets if not (path / name).exists()]:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as draft:
            for name in missing:
                link = Path(draft) / name
                link.symlink_to(targets[name])
                link.replace(path / name)
    return path


def _users_cache() -> Path:
    if named := os.environ.get("XDG_CACHE_HOME"):
        return Path(named) / "penstock"
    try:
        home = Path.home()
    except RuntimeError:  # A service account without a home.
        return Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}"
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "penstock"
