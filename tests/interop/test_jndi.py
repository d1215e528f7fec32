"""JMS programs that find everything by JNDI, with properties that ``penstock topology jndi`` has
written."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import penstock
from penstock_server.cli.program import app
from tests.docs.pages import GUIDE, blocks
from tests.interop.programs import (
    InteropRealm,
    Tell,
    compile_java,
    run_java,
    run_program,
)

(PAGE,) = [page for page in GUIDE if page.stem == "jndi"]
FILES = {block.file: block.text for block in blocks(PAGE) if block.file}
"""The files on the page, by name."""
DESTINATIONS = [
    ("queue", "two words", "two words"),
    ("queue", "a=b:c", "a=b:c"),
    ("queue", "#1!", "#1!"),
    ("queue", "Grüße", "Grüße"),
    ("queue", "🍋/🍋", "🍋/🍋"),
    ("queue", "${user.home}", "${user.home}"),
    ("queue", "$$", "$$"),
    ("queue", 'eu/"it\'s"', 'eu/"it\'s"'),
    ("topic", "a", "a"),
    ("topic", "a_b", "a/b"),
    ("topic", "a_b_c", "a/b/c"),
    ("topic", "eu/de/berlin", "eu/de/berlin"),
    ("topic", "java_comp_env", "java:comp/env"),
    ("topic", "dynamicQueues_x", "dynamicQueues/x"),
    ("topic", "jms_2", "jms"),
]
"""Kind, lookup name and name of destinations."""
FACTORIES = ["jms/Shop", "Shop:1 = 2"]


def write_properties(file: Path, url: str, *options: str) -> None:
    """Run the command with a realm at this URL."""
    done = CliRunner().invoke(app, ["topology", "jndi", str(file), "--url", url, *options])
    assert done.exit_code == 0, done.output


def test_the_page_shows_the_file_that_the_command_writes(tmp_path: Path) -> None:
    file = tmp_path / "jndi.properties"
    with penstock.Realm(name="shop") as realm, realm.connect() as session:
        session.queues.create("shop/orders")
        session.channels.create("shop/prices")
        write_properties(file, realm.listen(), "--amqp", "amqp://localhost:5672")

    assert file.read_text(encoding="ascii") == FILES["jndi.properties"]


@pytest.mark.usefixtures("java")
@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize(("suite", "package"), [("qpid", "jakarta.jms"), ("joram", "javax.jms")])
def test_the_program_of_the_page_runs_with_the_properties_of_its_realm(
    realm: InteropRealm, jms: str, tmp_path: Path, suite: str, package: str
) -> None:
    """With the names of Jakarta Messaging and with those of programs for Universal Messaging."""
    with penstock.connect(realm.url) as session:
        queues, channels = session.queues.list(), session.channels.list()
        if "shop/orders" not in queues:
            session.queues.create("shop/orders", type="persistent")
        if "shop/prices" not in channels:
            session.channels.create("shop/prices", type="persistent")
        texts = {"Till.java": FILES["Till.java"].replace("jakarta.jms", package)}
        classes = compile_java(suite, texts, tmp_path)
        write_properties(classes / "jndi.properties", realm.url, "--amqp", jms)

        printed = run_program(suite, classes, "Till")

        expected = [f"{what} {number}" for what in ("order", "price") for number in (1, 2, 3)]
        assert printed.splitlines() == expected
        assert session.queues.get("shop/orders").info().events == 0
        (durable,) = session.channels.get("shop/prices").durables.list()
        assert (durable.name, durable.type, durable.outstanding) == ("till:news", "exclusive", 0)


@pytest.mark.usefixtures("java")
@pytest.mark.slow
@pytest.mark.process
def test_qpid_jms_finds_destinations_of_any_name(tmp_path: Path, tell: Tell) -> None:
    names, properties = tmp_path / "names", tmp_path / "realm.properties"
    names.write_text("".join("\t".join(line) + "\n" for line in DESTINATIONS), encoding="utf-8")
    for file in ("user.properties", "more.properties"):
        (tmp_path / file).write_text(FILES[file], encoding="ascii")
    with penstock.Realm() as realm, realm.connect() as session:
        for kind, _, name in DESTINATIONS:
            create = session.queues.create if kind == "queue" else session.channels.create
            create(name)
        options = [part for factory in FACTORIES for part in ("--factory", factory)]
        options += ["--amqp", "amqps://shop.example:5672?jms.clientID=till"]
        write_properties(properties, realm.listen(), *options)

    java_properties = {
        "realm.names": str(names),
        "realm.count": str(len(DESTINATIONS)),
        "realm.jndi": str(properties),
        "realm.factories": ",".join(FACTORIES),
        "realm.user": str(tmp_path / "user.properties"),
        "realm.more": str(tmp_path / "more.properties"),
    }
    outcome = run_java("qpid", ["penstock.interop.JndiTest"], java_properties)

    tell("Qpid JMS with JNDI", outcome)
    assert str(outcome) == "4 of 4 pass"
