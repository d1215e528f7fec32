"""The log of a busy realm is not a line a connection, or a line a refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from penstock.testing.process import ServerProcess


@pytest.mark.process
def test_sessions_and_refusals_leave_no_line_at_info(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        started = server.log
        for _ in range(5):
            with penstock.connect(server.url) as session:
                session.info()
                with pytest.raises(penstock.NameDoesNotExist):
                    session.channels.get("unknown")
        lines = server.log.removeprefix(started)

    assert '"realm.listening"' in started
    assert lines == ""
