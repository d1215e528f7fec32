"""``penstock topology``: a file that exists is not lost, and properties name what a user may
see."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock
from tests.commands import commands_of

if TYPE_CHECKING:
    from penstock.client.sync.sync import Session
    from tests.commands import Run

EXPORTS = Path(__file__).parents[1] / "migration"


@pytest.mark.parametrize(
    ("command", "export"), [("from-rabbitmq", "definitions.json"), ("from-um", "realm.xml")]
)
def test_an_existing_file_is_replaced_only_after_a_confirmation(
    penstock_command: Run, tmp_path: Path, command: str, export: str
) -> None:
    file = tmp_path / "shop.toml"
    file.write_text("# an older topology")

    refused = penstock_command("topology", command, str(EXPORTS / export), str(file))

    assert refused.exit_code == 2
    assert "--yes" in refused.stderr
    assert file.read_text() == "# an older topology"

    replaced = penstock_command("topology", command, str(EXPORTS / export), str(file), "--yes")

    assert replaced.exit_code == 0
    assert file.read_text().startswith("# Converted from ")


def test_the_properties_of_a_realm_are_written(
    penstock_command: Run, session: Session, tmp_path: Path
) -> None:
    session.channels.create("shop/prices")
    session.queues.create("shop")
    file = tmp_path / "jndi.properties"

    printed = penstock_command("topology", "jndi", "--factory", "jms/Shop", "--amqp", "amqp://a:1")
    done = penstock_command("topology", "jndi", str(file), "--factory", "A", "--factory", "B")
    again = penstock_command("topology", "jndi", str(file))

    assert printed.exit_code == done.exit_code == 0
    assert printed.stdout.splitlines()[1:] == [
        "# Written by: penstock topology jndi",
        "java.naming.factory.initial = org.apache.qpid.jms.jndi.JmsInitialContextFactory",
        "",
        "connectionfactory.jms/Shop = amqp://a:1",
        "",
        "queue.shop = shop",
        "",
        "# topic shop/prices is looked up as shop_prices: the name shop belongs to queue shop",
        "topic.shop_prices = shop/prices",
    ]
    assert printed.stderr.splitlines() == [
        "warning: topic shop/prices is looked up as shop_prices: the name shop belongs to queue "
        "shop",
        "standard output written: 1 queue, 1 topic; connection factories use amqp://a:1",
    ]
    lines = file.read_text().splitlines()
    assert lines[4:6] == [
        "connectionfactory.A = amqp://127.0.0.1:5672",
        "connectionfactory.B = amqp://127.0.0.1:5672",
    ]
    assert again.exit_code == 2, "the file exists"
    assert "--yes" in again.stderr


def test_a_url_with_a_password_is_refused_before_the_realm_is_asked(penstock_command: Run) -> None:
    refused = penstock_command("topology", "jndi", "--amqp", "amqp://a?jms.password=tillsecret")

    assert refused.exit_code == 1
    assert "contains a password" in refused.output
    assert "tillsecret" not in refused.output


def test_the_properties_name_what_the_user_may_see_and_no_password() -> None:
    with (
        penstock.Realm(access__mode="mandatory", access__password_rounds=4_096) as realm,
        realm.connect() as root,
    ):
        root.access.create_user("ann", "a password of ann's")
        for name in ("open", "secret"):
            root.channels.create(name)
        root.queues.create("work")
        root.access.grant("ann@*", "access")
        root.access.grant("ann@*", "subscribe", channel="open")
        root.access.grant("ann@*", "pop", queue="work")
        host = realm.listen().partition("//")[2]
        url = f"penstock://ann:a%20password%20of%20ann%27s@{host}"

        done = commands_of(realm)("topology", "jndi", "--url", url)

        assert done.exit_code == 0, done.output
        names = [line for line in done.stdout.splitlines() if line.startswith(("queue.", "topic."))]
        assert names == ["queue.work = work", "topic.open = open"]
        assert "password" not in done.output
