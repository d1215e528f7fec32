"""Destinations of backups: a folder that is updated, and a tar file.

A folder contains the manifest ``backup.json``, a folder ``kept`` with the files that never change,
and a folder with all other files, which is named after the time of the backup. The manifest is
replaced last, so that the earlier backup stays complete if a new one fails.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

import msgspec

from penstock.client.copies.sinks import FolderSink, Sink, sync_directory, usable
from penstock_core.api.backup_files import FORMAT, MANIFEST, BackupManifest, KeptFile, is_data_file
from penstock_core.columns.files.tar_entries import END, header, padding
from penstock_core.vocabulary.argument_errors import decode_json
from penstock_core.vocabulary.errors import DamagedBackup, InvalidArgument

TAR = ".tar"
"""Suffix of the file name of a backup that is a single tar file."""


class BackupFolder(FolderSink):
    """A folder with one backup, locked for one writer. It must be closed, also after an error."""

    _flag = os.O_TRUNC  # the file may be a part of an interrupted backup

    def __init__(self, path: Path) -> None:
        """Open and lock the folder. A missing folder is created with access for its owner only.

        Raises ``InvalidArgument`` if the folder cannot be used or has another writer.
        """
        super().__init__(path)
        with usable(path):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        # The system releases the lock if the process dies, so no lock file can be left behind.
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise InvalidArgument(f"another backup is being written to {path}") from None

    def close(self) -> None:
        """Close the folder, so that other writers can open it."""
        super().close()
        os.close(self._lock)

    def kept(self, realm: str) -> dict[str, KeptFile]:
        """Return those files of the earlier backup that exist, by path.

        Raises ``DamagedBackup`` if the manifest cannot be read, and ``InvalidArgument`` unless the
        folder is empty or contains a backup of this realm.
        """
        manifest = read_manifest(self.path)
        if manifest is None:
            return {}
        if manifest.realm != realm:
            raise InvalidArgument(
                f"{self.path} is a backup of another realm, {manifest.name} ({manifest.realm}); "
                f"give each realm its own folder"
            )
        return {file.path: file for file in manifest.files if self._has(file)}

    def finish(self, manifest: BackupManifest) -> None:
        """Replace the manifest once all files are on disk, then remove the files that the new
        manifest does not list."""
        self.publish(MANIFEST, encoded(manifest))
        listed_paths = {self.path / file.path for file in manifest.files}
        with usable(self.path):
            for root, directories, names in os.walk(self.path, topdown=False):
                for name in names:
                    # Other files in the folder itself, such as notes, are not touched.
                    if Path(root) != self.path and Path(root) / name not in listed_paths:
                        (Path(root) / name).unlink()
                for name in directories:
                    with suppress(OSError):  # the folder is not empty
                        (Path(root) / name).rmdir()

    def _has(self, file: KeptFile) -> bool:
        """Return whether the folder has the file in its full size; an interrupted backup may have
        written a part of it."""
        try:
            return (self.path / file.path).stat().st_size == file.size
        except OSError:
            return False


class BackupTar(Sink):
    """A backup in one tar file, with the manifest last.

    The file gets its name when it is complete, and then replaces an earlier one. The object must be
    closed, also after an error.
    """

    def __init__(self, path: Path) -> None:
        """Create the file under a temporary name. Raises ``InvalidArgument`` if this fails."""
        super().__init__(path)
        if path.is_dir():
            raise InvalidArgument(f"{path} is a folder; a name that ends in {TAR} must be a file")
        self._partial = path.with_name(f"{path.name}.partial")
        self._size = self._at_us = 0
        with usable(path):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._open(self._partial, os.O_TRUNC, mode=0o600)

    def begin(self, name: str, size: int, at_us: int) -> None:
        """Begin a file of ``size`` bytes; its modification time is ``at_us``, in microseconds since
        1970."""
        self._size, self._at_us = size, at_us
        self._append(header(name, size, at_us))
        self._digest.reset()

    def end(self) -> str:
        """End the file begun last. Return its XXH3-64 digest in hexadecimal."""
        self._append(padding(self._size))
        return self._digest.hexdigest()

    def kept(self, realm: str) -> dict[str, KeptFile]:
        """Return an empty dictionary: a tar is always written completely."""
        return {}

    def finish(self, manifest: BackupManifest) -> None:
        """Write the manifest, sync the tar file to disk, and give it its final name."""
        content = encoded(manifest)
        self.begin(MANIFEST, len(content), self._at_us)
        self.write(content)
        self.end()
        self._append(END)
        self._sync()
        with usable(self.path):
            self._partial.replace(self.path)
            sync_directory(self.path.parent)

    def close(self) -> None:
        """Close the tar file, and remove it unless :meth:`finish` has completed it."""
        if self._file is not None and not self._file.closed:
            self._partial.unlink(missing_ok=True)
        super().close()


# --- the manifest -------------------------------------------------------------------------


def encoded(manifest: BackupManifest) -> bytes:
    """Return the content of ``backup.json``."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1)


def read_manifest(folder: Path) -> BackupManifest | None:
    """Return the manifest of the backup in a folder; None if the folder is empty or missing.

    Raises ``InvalidArgument`` for a folder with other content, ``DamagedBackup``.
    """
    with usable(folder):
        try:
            content = (folder / MANIFEST).read_bytes()
        except FileNotFoundError:
            if foreign := _foreign_names(folder):
                raise InvalidArgument(
                    f"{folder} is neither empty nor a backup (it contains {foreign[0]}); give an "
                    f"empty folder"
                ) from None
            return None
    return manifest_from(content, folder)


def manifest_from(content: bytes, backup: Path) -> BackupManifest:
    """Decode the manifest of the backup at the path ``backup``.

    Raises ``DamagedBackup`` if it cannot be decoded, and ``InvalidArgument`` if a newer version of
    Penstock wrote it.
    """
    manifest = decode_json(
        content,
        BackupManifest,
        whole="the manifest",
        refuse=lambda why: DamagedBackup(f"{backup / MANIFEST} cannot be read: {why}"),
    )
    if manifest.format > FORMAT:
        raise InvalidArgument(
            f"{backup} is a backup of format {manifest.format}, and this version reads up to "
            f"{FORMAT}; use Penstock {manifest.version}"
        )
    for file in manifest.files:
        _check_paths(file)
    return manifest


def _check_paths(file: KeptFile) -> None:
    """Raise ``DamagedBackup`` if an entry of a manifest names a path outside the backup, or a name
    outside a data directory."""
    # A forged manifest could otherwise overwrite any file of the user who restores it.
    if not is_data_file(file.name):
        raise DamagedBackup(
            f"the manifest names {file.name[:200]!r}, which cannot be a file of a data directory"
        )
    root = file.path.removesuffix(file.name).removesuffix("/")
    kept = f"kept/{file.name}.{file.stamp:x}"
    if file.path != kept and not (root.isdecimal() and file.path == f"{root}/{file.name}"):
        raise DamagedBackup(
            f"the manifest has {file.name} at {file.path[:200]!r}, which is outside a backup"
        )


def _foreign_names(folder: Path) -> list[str]:
    """Return the names in a folder that an interrupted backup cannot have created, sorted."""
    if not folder.is_dir():
        return []
    own_names = {"kept", f"{MANIFEST}.partial", "lost+found"}
    return sorted(
        entry.name
        for entry in folder.iterdir()
        if entry.name not in own_names and not entry.name.isdecimal()
    )
