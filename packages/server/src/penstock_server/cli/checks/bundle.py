"""Writes the support archive of ``penstock doctor --bundle``: a tar file with one file for each
part, and a manifest."""

from __future__ import annotations

import errno
import http.client
import io
import os
import socket
import ssl
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

from penstock_core.version import __version__
from penstock_core.vocabulary.errors import InvalidArgument, PenstockError, StorageFailed
from penstock_server.cli.checks import bundle_parts as parts
from penstock_server.cli.checks.bundle_parts import Sources, Unobtainable
from penstock_server.runtime.writer.clock import SystemClock

FORMAT: Final = 1
"""Version of the archive's layout, in its manifest."""
PARTS: Final[Mapping[str, tuple[Callable[[Sources], bytes], str]]] = {
    "doctor.json": (
        parts.findings,
        "texts of checks that may quote a setting, a path or an answer",
    ),
    "settings.json": (
        parts.settings,
        "values that are texts: URLs, paths, names, addresses; only numbers, truth values, choices "
        "and defaults are included",
    ),
    "machine.json": (parts.machine, "the names of the machine and the user, and the environment"),
    "packages.json": (parts.packages, "packages that Penstock does not require"),
    "files.json": (parts.files, "names and contents of files; links are counted, not followed"),
    "lines.ndjson": (
        parts.log,
        "texts of lines, such as names, hosts, URLs and reasons, and lines of other libraries",
    ),
    "realm.json": (parts.realm, "names and addresses of the realm and its nodes"),
    "statistics.json": (
        parts.statistics,
        "events, properties, selectors, schemas, and names of durables and clients",
    ),
    "metrics.txt": (parts.metrics, "metrics of durables, connections, nodes and servers"),
}
"""The parts by file name: the function that makes the part, and a text about the data that the part
leaves out."""
NEVER: Final = (
    "events and their properties",
    "names of users and groups, passwords and their hashes",
    "tokens, keys and certificates",
    "connection URLs",
    "ids of clients and sessions",
)
_FAILURES: Final = (Unobtainable, PenstockError, OSError, http.client.HTTPException, ValueError)
"""Errors after which the archive is written without the part."""


def check_target(target: Path, data: Path | None, *, overwrite: bool) -> None:
    """Check that an archive can be created at ``target``, before the work begins.

    Raises ``InvalidArgument``.
    """
    folder = target.expanduser().absolute().parent
    if not folder.is_dir():
        raise InvalidArgument(f"{folder} is not a folder; create it, or name another file")
    if target.expanduser().is_dir():
        raise InvalidArgument(f"{target} is a folder; name a file in it")
    if os.path.lexists(target.expanduser()) and not overwrite:
        raise _exists(target)
    if data is not None and folder.resolve().is_relative_to(data.expanduser().resolve()):
        raise InvalidArgument(f"{target} is in the data directory; name a file outside of it")


def write_bundle(target: Path, sources: Sources, *, overwrite: bool) -> None:
    """Write the archive, readable by its owner only. It appears under its name when it is complete.

    Raises ``InvalidArgument`` if the file exists and may not be replaced, and ``StorageFailed``.
    """
    files, manifest = _made(sources)
    path = target.expanduser().absolute()
    try:
        number, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
        try:
            with open(number, "wb") as file:  # mkstemp has given it mode 0600
                content = {"manifest.json": parts.encoded(manifest), **files}
                _write_tar(file, content, made_at_s=manifest["made_at_us"] // 1_000_000)
                file.flush()
                os.fsync(number)
            _publish(Path(name), path, overwrite=overwrite)
        finally:
            Path(name).unlink(missing_ok=True)
    except FileExistsError:
        raise _exists(target) from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise StorageFailed(f"{target} cannot be written: {reason}; no file was created") from error


def _exists(target: Path) -> InvalidArgument:
    return InvalidArgument(f"{target} exists; name another file, or replace it with --overwrite")


def _publish(complete: Path, path: Path, *, overwrite: bool) -> None:
    """Give the complete file its name."""
    if overwrite:
        complete.replace(path)
        return
    try:
        # A link fails if the name exists, also if another process has just created it.
        path.hardlink_to(complete)
    except OSError:  # it exists, or the file system has no links
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
        complete.rename(path)


def _made(sources: Sources) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Return the content of each part that could be made, and the manifest."""
    files: dict[str, bytes] = {}
    rows = []
    for name, (make, leaves_out) in PARTS.items():
        row: dict[str, Any] = {"name": name, "leaves_out": leaves_out}
        try:
            files[name] = make(sources)
            row["bytes"] = len(files[name])
        except _FAILURES as error:  # the other parts are made all the same
            row["missing"] = _reason(error)
        rows.append(row)
    manifest = {
        "format": FORMAT,
        "version": __version__,
        "made_at_us": SystemClock().now_us(),
        "parts": rows,
        "never_included": NEVER,
    }
    return files, manifest


def _reason(error: Exception) -> str:
    """Return why a part is missing, without the text of an error, which may quote a secret."""
    match error:
        case Unobtainable():
            return str(error)
        case PenstockError():
            return f"refused: {error.code}"
        case ssl.SSLError():
            return "the TLS handshake failed"
        case socket.gaierror():
            return "the host is unknown"
        case OSError() if error.errno is not None:
            return os.strerror(error.errno)
        case http.client.HTTPException():
            return "the answer is not HTTP"
        case _:
            return f"failed: {type(error).__name__}"


def _write_tar(file: BinaryIO, files: Mapping[str, bytes], *, made_at_s: int) -> None:
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"penstock-support/{name}")
            entry.size, entry.mode, entry.mtime = len(content), 0o600, made_at_s
            tar.addfile(entry, io.BytesIO(content))
