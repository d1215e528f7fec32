"""The epoch distinguishes the ids of a channel from those of another channel of the same name (SEM
C1d)."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock

pytestmark = pytest.mark.spec("C1d")


def test_ids_that_begin_again_are_others_and_ids_that_stay_are_the_same(tmp_path: Path) -> None:
    before: dict[str, str] = {}
    with penstock.Realm(tmp_path) as realm, realm.connect() as session:
        for kind in ("simple", "transient", "reliable", "persistent"):
            before[kind] = session.channels.create(kind, type=kind).epoch
            assert session.channels.get(kind).epoch == before[kind]
        before["work"] = session.queues.create("work").epoch
        moved = session.channels.create("moved")
        session.channels.delete("moved")
        assert session.channels.create("moved").epoch != moved.epoch
    with penstock.Realm(tmp_path) as realm, realm.connect() as session:
        after = {kind: session.channels.get(kind).epoch for kind in before if kind != "work"}
        after["work"] = session.queues.get("work").epoch

    assert {kind for kind, epoch in after.items() if epoch != before[kind]} == {
        "simple",
        "transient",
    }
