"""The cache folder: private, complete under concurrent makers, and repaired when swept."""

from __future__ import annotations

import stat
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock_core.vocabulary.errors import Unavailable
from penstock_spark.session.cache import cache_directory, link_once, write_once


def test_it_is_where_the_user_says_and_nobody_else_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mine"))

    made = cache_directory()

    assert made == tmp_path / "mine" / "penstock"
    assert stat.S_IMODE(made.stat().st_mode) == 0o700


def test_a_folder_that_others_can_write_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_to_all = tmp_path / "penstock"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))

    assert cache_directory().parent == tmp_path / "tmp"


def test_with_no_folder_to_be_had_the_error_names_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.setattr(tempfile, "tempdir", str(blocked))

    with pytest.raises(Unavailable, match=r"file/penstock: .*file/penstock-\d+: .*XDG_CACHE_HOME"):
        cache_directory()


def test_many_makers_at_once_leave_one_complete_folder_and_no_drafts(tmp_path: Path) -> None:
    targets = {f"part-{number}": tmp_path / "target" for number in range(20)}
    (tmp_path / "target").write_text("")
    parent = tmp_path / "cache"
    parent.mkdir()

    with ThreadPoolExecutor(8) as pool:
        made = set(pool.map(lambda _: link_once(parent / "links", targets), range(40)))

    assert made == {parent / "links"}
    assert {entry.name for entry in (parent / "links").iterdir()} == set(targets)
    assert list(parent.iterdir()) == [parent / "links"]


def test_a_folder_that_another_process_finds_complete_stays_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "target").write_text("")
    path, targets = tmp_path / "links", dict.fromkeys("ab", tmp_path / "target")
    link = Path.symlink_to
    complete: list[int] = []

    def step(at: Path, target: Path) -> None:
        """Another process makes the whole folder meanwhile, and begins to use it."""
        link(at, target)
        if len(complete) == 0:
            complete.append(0)
            complete[0] = link_once(path, targets).stat().st_ino

    monkeypatch.setattr(Path, "symlink_to", step)

    assert link_once(path, targets).stat().st_ino == complete[0]
    assert list(tmp_path.glob("tmp*")) == []


def test_a_folder_that_lost_a_link_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("")
    targets = {"a": tmp_path / "target", "b": tmp_path / "target"}
    (link_once(tmp_path / "links", targets) / "b").unlink()

    assert (link_once(tmp_path / "links", targets) / "b").exists()


def test_a_file_is_replaced_when_its_text_or_mode_differs(tmp_path: Path) -> None:
    file = write_once(tmp_path / "folder" / "run", "one", mode=0o700)
    file.chmod(0o600)

    write_once(file, "two", mode=0o700)

    assert file.read_text() == "two"
    assert stat.S_IMODE(file.stat().st_mode) == 0o700
