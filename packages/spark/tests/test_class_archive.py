"""One JVM writes the class archive, the next ones use it, and nothing that goes wrong is fatal."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from penstock_spark.session.class_archive import ClassArchive
from penstock_spark.session.jvm import Jvm

on_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux says when a process began, and what is a thread"
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "penstock"


@pytest.fixture
def jvm(tmp_path: Path) -> Jvm:
    """The files of a JDK that matter here."""
    for file in ("bin/java", "lib/server/classes.jsa"):
        (tmp_path / "jdk" / file).parent.mkdir(parents=True)
        (tmp_path / "jdk" / file).touch()
    return Jvm(tmp_path / "jdk" / "bin" / "java", 17, "PATH")


def archive_for(jvm: Jvm) -> ClassArchive:
    return ClassArchive(jvm, Path("spark"))


def path_in(options: list[str]) -> Path:
    return Path(options[-1].strip('"').partition("=")[2])


def exited_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_the_first_writes_those_beside_it_go_without_and_later_ones_use_it(
    cache: Path, jvm: Jvm
) -> None:
    first = archive_for(jvm)
    options = first.java_options()
    assert options[-1].startswith('"-XX:ArchiveClassesAtExit=')
    first.record_writer(os.getpid())

    assert archive_for(jvm).java_options() == []

    path_in(options).write_bytes(b"head and classes")
    assert archive_for(jvm).java_options() == []

    first.record_writer(exited_process())
    used = archive_for(jvm).java_options()
    assert used[-1].startswith('"-XX:SharedArchiveFile=')
    assert path_in(used).read_bytes() == b"head and classes"
    assert archive_for(jvm).java_options() == used


def test_a_draft_whose_writer_was_killed_is_thrown_away_and_written_anew(
    cache: Path, jvm: Jvm
) -> None:
    first = archive_for(jvm)
    draft = path_in(first.java_options())
    draft.write_bytes(bytes(64))
    first.record_writer(exited_process())

    assert path_in(archive_for(jvm).java_options()) == draft
    assert not draft.exists()


@on_linux
def test_a_claim_that_names_a_thread_is_nobodys(cache: Path, jvm: Jvm) -> None:
    """Ids are given again, to threads too, and those answer to signals like processes."""
    draft, claim = left_behind(jvm)
    is_over = threading.Event()
    thread = threading.Thread(target=is_over.wait)
    thread.start()
    try:
        stat = Path(f"/proc/self/task/{thread.native_id}/stat").read_text()
        claim.write_text(f"{thread.native_id} {stat.rpartition(')')[2].split()[19]}")

        assert path_in(archive_for(jvm).java_options()) == draft.with_suffix(".jsa")
    finally:
        is_over.set()
        thread.join()


@on_linux
def test_a_claim_that_names_a_process_begun_at_another_time_is_nobodys(
    cache: Path, jvm: Jvm
) -> None:
    draft, claim = left_behind(jvm)
    process_id, began = claim.read_text().split()
    claim.write_text(f"{process_id} {int(began) - 1}")

    assert path_in(archive_for(jvm).java_options()) == draft.with_suffix(".jsa")


@pytest.mark.parametrize("text", ["", "no process", str(os.getpid())], ids=["empty", "words", "id"])
def test_a_claim_that_cannot_be_read_is_nobodys(cache: Path, jvm: Jvm, text: str) -> None:
    """The last one is what earlier versions wrote: an id alone."""
    draft, claim = left_behind(jvm)
    claim.write_text(text)

    assert path_in(archive_for(jvm).java_options()) == draft.with_suffix(".jsa")


@pytest.mark.slow
def test_a_process_that_ended_and_was_not_waited_for_writes_nothing_more(
    cache: Path, jvm: Jvm
) -> None:
    first = archive_for(jvm)
    draft = path_in(first.java_options())
    draft.write_bytes(b"head and classes")
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        first.record_writer(process.pid)

        assert path_in(archive_for(jvm).java_options()) == draft.with_suffix(".jsa")


def left_behind(jvm: Jvm) -> tuple[Path, Path]:
    """A whole draft of this process, and the claim to it."""
    first = archive_for(jvm)
    draft = path_in(first.java_options())
    first.record_writer(os.getpid())
    draft.write_bytes(b"head and classes")
    assert archive_for(jvm).java_options() == [], "its writer is thought to run"
    return draft, draft.with_suffix(".claim")


def test_options_of_the_application_about_class_archives_win(cache: Path, jvm: Jvm) -> None:
    assert archive_for(jvm).java_options("-Xmx1g -XX:SharedArchiveFile=mine.jsa") == []
    assert list(cache.iterdir()) == []


def test_a_cache_that_cannot_be_written_costs_only_the_archive(cache: Path, jvm: Jvm) -> None:
    archive = archive_for(jvm)
    cache.rmdir()
    cache.write_text("in the way")

    assert archive.java_options() == []


def test_a_jvm_without_an_archive_of_its_own_classes_goes_without(cache: Path, jvm: Jvm) -> None:
    (jvm.java.parents[1] / "lib" / "server" / "classes.jsa").unlink()

    assert archive_for(jvm).java_options() == []
    assert list(cache.iterdir()) == []
