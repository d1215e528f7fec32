"""``penstock topology``: topologies from the configuration of other brokers, and JNDI properties of
a realm."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock_core.printable import on_one_line
from penstock_server.cli.shared.confirmation import Yes
from penstock_server.cli.shared.grouping import command_group
from penstock_server.cli.shared.output import count, note, write
from penstock_server.cli.shared.realm import DEFAULT_URL, Url, session
from penstock_tools.cli.applying import write_file

if TYPE_CHECKING:
    from penstock_tools.migration.conversion import Conversion

DIFFERS: Final = 3
"""Exit status of a conversion with ``--strict`` if something has no exact counterpart."""
_HEADING: Final = """\
Converted from {source} by: penstock topology {command}
Read by: penstock apply FILE"""

Target = Annotated[
    Path | None,
    typer.Argument(help="The file to write. [default: standard output]", metavar="[FILE]"),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="End with exit status 3 if there are warnings. The file is written nevertheless.",
    ),
]
WithoutAccess = Annotated[
    bool,
    typer.Option(
        "--no-access",
        help="Leave out users, groups and rights, for a realm without authentication.",
    ),
]

JNDI_HEADING: Final = """\
Connection factories, queues and topics of realm {realm} for Apache Qpid JMS.
Written by: penstock topology jndi"""

_ABOUT: Final = "Convert the configuration of other brokers, and write that of JMS programs."
commands = command_group(_ABOUT)


def register(app: typer.Typer) -> None:
    """Add the commands of this module to ``app``."""
    app.add_typer(commands, name="topology")


@commands.callback()
def _group() -> None:
    """Convert the configuration of other brokers, and write that of JMS programs."""


@commands.command("from-rabbitmq")
def from_rabbitmq(
    definitions: Annotated[
        Path, typer.Argument(help="The exported definitions, a JSON file.", metavar="DEFINITIONS")
    ],
    file: Target = None,
    virtual_host: Annotated[
        str,
        typer.Option(
            "--vhost",
            help="Virtual host to convert. Needed if the definitions have several.",
            metavar="NAME",
        ),
    ] = "",
    routing_key: Annotated[
        str,
        typer.Option(
            help="What selectors compare with routing keys: tag, JMSType, or a property.",
            metavar="NAME",
        ),
    ] = "tag",
    no_access: WithoutAccess = False,
    strict: Strict = False,
    yes: Yes = False,
) -> None:
    """Convert definitions of RabbitMQ to a file that `penstock apply` reads.

    Queues stay queues, streams become channels, and exchanges become channels with a join for each
    queue or exchange that is bound to them. Everything without an exact counterpart is printed to
    standard error, with what was done and what would be right. Does not connect to a realm.

    \b
    Examples:
      penstock topology from-rabbitmq definitions.json shop.toml
      penstock topology from-rabbitmq definitions.json --vhost shop > shop.toml
    """
    from penstock_tools.migration.conversion import read_source
    from penstock_tools.migration.rabbitmq import convert_definitions

    conversion = convert_definitions(
        read_source(definitions),
        str(definitions),
        virtual_host=virtual_host,
        key_name=routing_key,
        with_access=not no_access,
    )
    _write(conversion, file, command="from-rabbitmq", yes=yes)
    _end(conversion, strict=strict)


@commands.command("from-um")
def from_um(
    realm: Annotated[
        Path, typer.Argument(help="The exported realm, an XML file.", metavar="REALM")
    ],
    file: Target = None,
    no_access: WithoutAccess = False,
    strict: Strict = False,
    yes: Yes = False,
) -> None:
    """Convert an exported realm of Universal Messaging to a file that `penstock apply` reads.

    Converts channels, queues, publish keys, durables, joins, groups and rights. Types that
    Universal Messaging has removed become others. Everything without an exact counterpart is
    printed to standard error, with what was done and what would be right. Does not connect to a
    realm.

    \b
    Examples:
      penstock topology from-um realm.xml shop.toml
      penstock topology from-um realm.xml --no-access --strict > shop.toml
    """
    from penstock_tools.migration.conversion import read_source
    from penstock_tools.migration.universal_messaging import convert_realm

    conversion = convert_realm(read_source(realm), str(realm), with_access=not no_access)
    _write(conversion, file, command="from-um", yes=yes)
    _end(conversion, strict=strict)


@commands.command("jndi")
def jndi(
    file: Target = None,
    amqp: Annotated[
        str,
        typer.Option(
            help="URL of connection factories. [default: port 5672 of the hosts in --url]",
            metavar="URL",
        ),
    ] = "",
    factory: Annotated[
        list[str] | None,
        typer.Option(
            help="Lookup name of a connection factory; may be repeated. [default: "
            "ConnectionFactory, QueueConnectionFactory, TopicConnectionFactory]",
            metavar="NAME",
        ),
    ] = None,
    yes: Yes = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Write a jndi.properties with the queues and channels of a realm, for JMS programs.

    Programs that find connection factories, queues and topics by JNDI run with Apache Qpid JMS and
    this file as they are. The file names every queue and channel that the user may see, and never
    has a password. If a name cannot be looked up, another one is written and printed to standard
    error.

    \b
    Examples:
      penstock topology jndi jndi.properties
      penstock topology jndi --amqp amqps://shop.example:5672 --factory jms/Shop
    """
    from penstock.client.connection.urls import parse_url
    from penstock_tools.migration.jndi import (
        FACTORIES,
        amqp_url_of,
        checked_amqp_url,
        jndi_properties,
        lookups,
    )

    amqp_url = checked_amqp_url(amqp or amqp_url_of(parse_url(url)))
    factories = tuple(dict.fromkeys(factory or FACTORIES))
    with session(url) as realm:
        destinations = lookups(realm.channels.list(), realm.queues.list(), factories)
        heading = JNDI_HEADING.format(realm=on_one_line(realm.info().name))
    text = jndi_properties(destinations, url=amqp_url, factories=factories, heading=heading)
    _write_text(text, file, yes=yes)
    for lookup in destinations:
        if lookup.remark:
            note(f"warning: {lookup.remark}")
    kinds = [lookup.kind for lookup in destinations]
    parts = [count(kinds.count("queue"), "queue"), count(kinds.count("topic"), "topic")]
    note(f"{_place(file)} written: {', '.join(parts)}; connection factories use {amqp_url}")


def _write_text(text: str, file: Path | None, *, yes: bool) -> None:
    """Write a text to a file, after confirmation if the file exists, or to standard output."""
    if file is None:
        write(text.rstrip("\n"))
    else:
        write_file(file, text, yes=yes)


def _place(file: Path | None) -> str:
    """Return the place of a written text, for users."""
    return "standard output" if file is None else str(file)


def _write(conversion: Conversion, file: Path | None, *, command: str, yes: bool) -> None:
    """Write the topology of a conversion, and print its differences."""
    from penstock_tools.migration.conversion import remark
    from penstock_tools.topology import to_toml

    topology = conversion.topology()
    heading = _HEADING.format(source=conversion.file, command=command)
    text = to_toml(topology, heading=heading, remark=remark)
    _write_text(text, file, yes=yes)
    for difference in conversion.differences:
        note(str(difference))
    if conversion.unlisted:
        note(f"{conversion.unlisted:,} more warnings and notes are not listed")
    kinds = [store.kind for store in topology.stores]
    parts = [
        count(kinds.count("channel"), "channel"),
        count(kinds.count("queue"), "queue"),
        count(sum(len(store.durables) for store in topology.stores), "durable"),
        count(len(topology.joins), "join"),
        count(len(topology.grants), "grant"),
    ]
    note(f"{_place(file)} written: {', '.join(parts)}; {count(conversion.warnings, 'warning')}")


def _end(conversion: Conversion, *, strict: bool) -> None:
    """End the command with its exit status."""
    if strict and conversion.warnings:
        raise typer.Exit(DIFFERS)
