"""``penstock bridge``: publishes the messages of another messaging server in a realm, each once."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.missing_packages import from_package
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_server.cli.shared import completing, parsers
from penstock_server.cli.shared.output import ListFormat, count, note, write, write_json
from penstock_server.cli.shared.realm import DEFAULT_URL, Url, session
from penstock_server.cli.shared.stopping import stopped_by_signals

if TYPE_CHECKING:
    from penstock_tools.bridge.sources import BridgeSource, SourceBounds, SourceUrl

PASSWORD_VARIABLE: Final = "PENSTOCK_SOURCE_PASSWORD"
"""Variable with the password of the source, for a URL that has a user without one."""
WINDOW_MAX: Final = 8_192
"""Largest number of messages that the source may send before they are settled: half of the
identities that a bridge remembers."""


def register(app: typer.Typer) -> None:
    """Add the command of this module to ``app``."""
    app.command("bridge")(bridge)


def bridge(
    source: Annotated[
        str,
        typer.Argument(
            help="Queue or topic of another server: amqp://user@host:5672/QUEUE, or "
            "mqtt://user@host:1883/TOPIC-FILTER (?version=3.1.1); amqps:// and mqtts:// with TLS "
            f"(?ca=FILE). The password may be in {PASSWORD_VARIABLE}.",
            metavar="SOURCE",
        ),
    ],
    destination: Annotated[
        str,
        typer.Argument(
            help="Channel that receives the events.",
            metavar="CHANNEL",
            autocompletion=completing.channels,
        ),
    ],
    name: Annotated[
        str, typer.Option(help="Name of this bridge; its state is the channel bridge/NAME.")
    ],
    queue: Annotated[
        bool, typer.Option("--queue", help="CHANNEL is a queue of the realm.")
    ] = False,
    subscription: Annotated[
        bool,
        typer.Option(
            "--subscription", help="SOURCE is a topic of AMQP: keep a durable subscription of it."
        ),
    ] = False,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="End once the source is empty.")
    ] = False,
    idle: Annotated[
        str,
        typer.Option(help="Time without a message after which a source counts as empty."),
    ] = "5s",
    window: Annotated[
        int,
        typer.Option(min=1, max=WINDOW_MAX, help="Messages that are received ahead of their end."),
    ] = 1_000,
    window_mib: Annotated[
        int, typer.Option(min=1, max=1_024, help="MiB of messages that are received ahead.")
    ] = 16,
    format: ListFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Publish the messages of another server, each once, until Ctrl-C or until it is empty.

    \b
    Examples:
      penstock bridge amqp://old.example/orders orders --name orders --until-empty
      penstock bridge amqps://reader@old.example/orders work --name work --queue
      penstock bridge "mqtt://old.example/sensors/#" sensors --name sensors
    """
    from penstock_tools.bridge.ledger import BridgeLedger
    from penstock_tools.bridge.running import Bridge, Forwarded
    from penstock_tools.bridge.sources import SourceBounds, parse_source

    source_url = parse_source(source, os.environ.get(PASSWORD_VARIABLE, ""))
    if subscription and source_url.uses_mqtt:
        raise InvalidArgument("--subscription is for AMQP; a source with MQTT always keeps one")
    idle_s = parsers.milliseconds(idle) / 1_000 if until_empty else None
    totals = {"stored": 0, "repeated": 0, "rejected": 0}

    def show(step: Forwarded) -> None:
        totals["stored"] += step.stored
        totals["repeated"] += step.repeated
        totals["rejected"] += step.rejected
        if step.stored:
            note(f"{count(step.stored, 'event')} stored, {totals['stored']:,} in all")

    with session(url) as realm, stopped_by_signals() as stopping:
        stores = realm.queues if queue else realm.channels
        ledger = BridgeLedger(realm, name, stores.get(destination), source=str(source_url))
        bounds = SourceBounds(window, window_mib << 20, realm.event_bytes_max)
        opened = _opened(source_url, name, bounds, is_subscription=subscription)
        Bridge(opened, ledger, on_step=show, on_retry=note).run(stopping, idle_s=idle_s)
    if format == "json":
        write_json(totals)
        return
    write(
        f"{count(totals['stored'], 'event')} stored, {totals['repeated']:,} delivered again and "
        f"not stored, {totals['rejected']:,} rejected"
    )


def _opened(
    url: SourceUrl, name: str, bounds: SourceBounds, *, is_subscription: bool
) -> BridgeSource:
    """Return the source of a URL, which is not connected."""
    if url.uses_mqtt:
        with from_package("penstock_mqtt"):
            from penstock_tools.bridge.mqtt_source import MqttSource
        return MqttSource(url, name, bounds, on_notice=note)
    with from_package("penstock_amqp"):
        from penstock_tools.bridge.amqp_source import AmqpSource
    return AmqpSource(url, name, bounds, is_subscription=is_subscription)
