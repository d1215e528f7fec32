"""``penstock health``: asks the realm on this machine whether it serves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock_core.vocabulary.errors import InvalidArgument
from penstock_server.cli.shared.choosing import chosen
from penstock_server.cli.shared.configuring import server_flags
from penstock_server.cli.shared.output import ListFormat, write, write_json
from penstock_server.cli.shared.server_flags import PORTS, flags_of

if TYPE_CHECKING:
    from penstock_server.cli.checks.probing import Endpoint, PortAnswer
    from penstock_server.settings import Settings

UNHEALTHY: Final = 1


def register(app: typer.Typer) -> None:
    app.command("health")(health)


@server_flags("settings", "host", *PORTS)
def health(
    *,
    ready: Annotated[
        bool,
        typer.Option("--ready", help="Also fail while the realm stops or stands still."),
    ] = False,
    timeout: Annotated[
        float, typer.Option(help="Seconds a port may take to answer.", min=0.1)
    ] = 3.0,
    format: ListFormat = "table",
    **written: Any,
) -> None:
    """Ask the realm on this machine whether it serves, on each of its ports.

    The ports, and whether they speak TLS, are read where `penstock serve` reads them: the
    settings file, the environment, flags. Nobody signs in and no line is logged, so it may run
    every few seconds. Exit status: 0 every port answers as it should, 1 one does not.

    \b
    Examples:
      penstock health
      penstock health --settings /etc/penstock/realm.toml --ready
    """
    wanted = chosen(written["settings"], flags_of(written))
    found = [
        (name, str(place), answer)
        for name, place, answer in _asked(wanted, "/ready" if ready else "/health", timeout)
    ]
    is_good = all(answer.is_good for _, _, answer in found)
    if format == "json":
        ports = [
            {"port": name, "address": place, "ok": answer.is_good, "said": answer.said}
            for name, place, answer in found
        ]
        write_json({"ok": is_good, "ports": ports})
    else:
        for name, place, answer in found:
            write(f"{'ok' if answer.is_good else 'failed':6}  {name:6}  {place}  {answer.said}")
    if not is_good:
        raise typer.Exit(UNHEALTHY)


def _asked(
    wanted: Settings, path: str, timeout_s: float
) -> Iterator[tuple[str, Endpoint, PortAnswer]]:
    from penstock_server.cli.checks import probing
    from penstock_server.settings import HTTP_PORT

    listen, own = wanted.listen, wanted.http
    host = probing.near(listen.host)
    place = _place(wanted, host, listen.port, option="listen.port")
    yield "native", place, probing.native(place, timeout_s)
    if own.enabled:
        number = HTTP_PORT if own.port is None else own.port
        place = _place(
            wanted, probing.near(own.host) if own.host else host, number, option="http.port"
        )
        answer = probing.over_http(place, path, timeout_s)
        # If no HTTP port was named, a realm does without HTTP when the default port is taken.
        if answer.is_good or own.port is not None:
            yield "http", place, answer
    if listen.amqp_port is not None:
        place = _place(wanted, host, listen.amqp_port, option="listen.amqp_port")
        yield "amqp", place, probing.amqp(place, timeout_s)
    if listen.mqtt_port is not None:
        place = _place(wanted, host, listen.mqtt_port, option="listen.mqtt_port")
        yield "mqtt", place, probing.mqtt(place, timeout_s)


def _place(wanted: Settings, host: str, port: int, option: str) -> Endpoint:
    from penstock_server.cli.checks.probing import Endpoint

    if not port:
        raise InvalidArgument(
            f"{option} is 0, so the realm chose a free port itself: pass that port ("
            f"--{option.removeprefix('listen.').replace('.', '-').replace('_', '-')} N)"
        )
    secure = bool(wanted.listen.tls_certificate or wanted.listen.tls_self_signed)
    return Endpoint(host, port, secure, wants_certificate=wanted.listen.tls_client_required)
