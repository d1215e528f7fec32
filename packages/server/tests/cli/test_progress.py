"""The progress display of long work."""

from __future__ import annotations

import sys

import pytest

from penstock_server.cli.shared.progress import progress


def test_no_progress_is_shown_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("publishing", 10) as seen:
        seen.show(5)

    assert capsys.readouterr().err == ""


def test_at_a_terminal_there_is_a_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    with progress("publishing", 10) as seen:
        seen.show(5)

    shown = capsys.readouterr()
    assert shown.out == ""
    assert "publishing" in shown.err
    assert "50%" in shown.err


def test_there_is_no_bar_without_an_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    with progress("publishing", 0) as seen:
        seen.show(5)

    assert capsys.readouterr().err == ""
