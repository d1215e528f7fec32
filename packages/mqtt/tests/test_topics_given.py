"""Topics of MQTT are taken from all others, so giving a channel some needs a right on all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from packages.mqtt.tests.internal_stores import GUARDED
from penstock_tools.topology import apply, look, parse, plan

pytestmark = [pytest.mark.spec("M12", "A3")]

TOPICS = ["plant/{who}/temp", "plant/#"]
LINES = '[[channel]]\nname = "mine"\ntopics = ["plant/#"]\n'


def applied(session: penstock.Session) -> None:
    apply(session, plan(parse(LINES), look(session, parse(LINES))))


def imported(session: penstock.Session, folder: Path) -> None:
    session.channels.import_from(folder, name="copy")


TAKEN: dict[str, Callable[[penstock.Session, Path], object]] = {
    "a new channel": lambda session, _: session.channels.create("new", topics=TOPICS),
    "a channel of one's own": lambda session, _: session.channels.get("mine").edit(topics=TOPICS),
    "a topology": lambda session, _: applied(session),
    "an import": imported,
}


@pytest.mark.parametrize("way", TAKEN)
def test_topics_need_full_on_the_channel_of_all_topics(way: str, tmp_path: Path) -> None:
    with penstock.Realm(**GUARDED) as realm, realm.connect() as session:
        realm.listen_mqtt()
        session.access.create_user("eve", "pw")
        session.access.grant("eve@*", "access", "channels")
        session.access.grant("eve@*", "realm")  # joins are looked at for a topology
        session.access.grant("eve@*", "subscribe", channel="mqtt")
        session.channels.create("lines", topics=["line/#"])
        session.channels.export("lines", tmp_path / "lines")
        session.channels.delete("lines")
        with realm.connect("eve") as eve:
            eve.channels.create("mine")

            with pytest.raises(penstock.AccessDenied, match="lacks 'full' on channel mqtt"):
                TAKEN[way](eve, tmp_path / "lines")

            session.access.grant("eve@*", "full", channel="mqtt")
            TAKEN[way](eve, tmp_path / "lines")
            session.access.revoke("eve@*", channel="mqtt")
            for name in set(eve.channels.list()) - {"mqtt"}:
                eve.channels.get(name).edit(ttl=60_000)


def test_the_channel_of_all_topics_is_made_by_who_may_do_everything_there() -> None:
    with penstock.Realm(**GUARDED) as realm, realm.connect() as session:
        session.access.create_user("eve", "pw")
        session.access.grant("eve@*", "access", "channels")
        with realm.connect("eve") as eve:
            with pytest.raises(penstock.AccessDenied, match="lacks 'full' on channel mqtt"):
                eve.channels.create("mqtt")
            with pytest.raises(penstock.NameAlreadyBound, match="reserved"):
                eve.channels.create("mqtt-sessions", keys={"entry": 1})
        session.channels.create("mqtt")
