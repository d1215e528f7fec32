"""``/health`` shows what background tasks could not do."""

from __future__ import annotations

import penstock
from packages.server.tests.frontends.http.asking import Web
from packages.server.tests.frontends.http.known import Known


def fail(realm: penstock.Realm, channel: str) -> str:
    """Have sealing fail for a channel; gives the number of the incident."""

    async def report() -> str:
        running = realm.running
        number = running.directory.find(channel)
        assert number is not None
        running.incidents.report("sealing", ValueError("a bad fact"), number)
        return str(running.incidents.open()[0].incident)

    return str(realm.loop.call(report()))


def test_a_channel_that_is_set_aside_makes_the_realm_degraded_but_healthy_and_ready(
    realm: penstock.Realm, session: penstock.Session, web: Web
) -> None:
    session.channels.create("orders")
    incident = fail(realm, "orders")

    for path in ("/health", "/ready"):
        reply = web.ask("GET", path)
        assert (reply.status, reply.document) == (
            200,
            {
                "status": "degraded",
                "incidents": [{"incident": incident, "task": "sealing", "channel": "orders"}],
            },
        )
    session.channels.delete("orders")
    assert web.get("/health") == {"status": "ok"}


def test_names_of_channels_are_shown_only_to_monitors() -> None:
    with penstock.Realm(access__mode="mandatory", access__password_rounds=4_096) as realm:
        web = Web(realm.listen_http())
        admin = Known(web.url, "admin", realm.access.first_password)
        admin.send("POST", "channels", {"name": "secret"})
        fail(realm, "secret")

        (shown,) = web.get("/health")["incidents"]
        assert (shown["task"], shown["channel"]) == ("sealing", "")
        assert admin.get("/health")["incidents"][0]["channel"] == "secret"


def test_incidents_are_counted_by_task_and_are_0_once_they_are_over(
    realm: penstock.Realm, session: penstock.Session, web: Web
) -> None:
    def samples() -> list[str]:
        text = web.ask("GET", "/metrics").data.decode().splitlines()
        return [line for line in text if line.startswith("penstock_incidents")]

    for name in ("orders", "bills"):
        session.channels.create(name)
    assert samples() == []
    for name in ("orders", "bills"):
        fail(realm, name)

    assert samples() == ['penstock_incidents{task="sealing"} 2.0']
    for name in ("orders", "bills"):
        session.channels.delete(name)
    assert samples() == ['penstock_incidents{task="sealing"} 0.0']
