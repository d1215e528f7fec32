"""``penstock health``, which tests whether the realm on this machine serves."""

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
"""Exit status if a port does not answer correctly."""


def register(app: typer.Typer) -> None:
    app.command("health")(health)


@server_flags("settings", "host", *PORTS)
def health(
    *,
    ready: Annotated[
        bool,
        typer.Option("--ready", help="Also fail while the realm is stopping or suspended."),
    ] = False,
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait for the answer of a port.", min=0.1)
    ] = 3.0,
    format: ListFormat = "table",
    **written: Any,
) -> None:
    """Test whether the realm on this machine answers on each of its ports.

    The ports and their use of TLS come from the settings file, the environment and flags, as for
    `penstock serve`. The test does not sign in and writes no log line, so it may run every few
    seconds. Exit status: 0 if every port answers correctly, 1 if not.

    \b
    Examples:
      penstock health
      penstock health --settings /etc/penstock/realm.toml --ready
    """
    settings = chosen(written["settings"], flags_of(written))
    answers = [
        (name, str(endpoint), answer)
        for name, endpoint, answer in _probe(settings, "/ready" if ready else "/health", timeout)
    ]
    is_good = all(answer.is_good for _, _, answer in answers)
    if format == "json":
        ports = [
            {"port": name, "address": address, "ok": answer.is_good, "said": answer.text}
            for name, address, answer in answers
        ]
        write_json({"ok": is_good, "ports": ports})
    else:
        for name, address, answer in answers:
            write(f"{'ok' if answer.is_good else 'failed':6}  {name:6}  {address}  {answer.text}")
    if not is_good:
        raise typer.Exit(UNHEALTHY)


def _probe(
    settings: Settings, path: str, timeout_s: float
) -> Iterator[tuple[str, Endpoint, PortAnswer]]:
    """Probe each configured port; yield its protocol, its endpoint and its answer."""
    from penstock_server.cli.checks import probing
    from penstock_server.settings import HTTP_PORT

    listen, http = settings.listen, settings.http
    host = probing.reachable_host(listen.host)
    endpoint = _endpoint(settings, host, listen.port, option="listen.port")
    yield "native", endpoint, probing.native(endpoint, timeout_s)
    if http.enabled:
        port = HTTP_PORT if http.port is None else http.port
        endpoint = _endpoint(
            settings,
            probing.reachable_host(http.host) if http.host else host,
            port,
            option="http.port",
        )
        answer = probing.over_http(endpoint, path, timeout_s)
        # Without a configured HTTP port, a realm runs without HTTP if the default port is in use.
        if answer.is_good or http.port is not None:
            yield "http", endpoint, answer
    if listen.amqp_port is not None:
        endpoint = _endpoint(settings, host, listen.amqp_port, option="listen.amqp_port")
        yield "amqp", endpoint, probing.amqp(endpoint, timeout_s)
    if listen.mqtt_port is not None:
        endpoint = _endpoint(settings, host, listen.mqtt_port, option="listen.mqtt_port")
        yield "mqtt", endpoint, probing.mqtt(endpoint, timeout_s)


def _endpoint(settings: Settings, host: str, port: int, option: str) -> Endpoint:
    """Return the place at which to probe a port of a server. Raises ``InvalidArgument`` for port
    0."""
    from penstock_server.cli.checks.probing import Endpoint

    if not port:
        raise InvalidArgument(
            f"{option} is 0, so the realm chose a free port itself: pass that port ("
            f"--{option.removeprefix('listen.').replace('.', '-').replace('_', '-')} N)"
        )
    secure = bool(settings.listen.tls_certificate or settings.listen.tls_self_signed)
    return Endpoint(host, port, secure, wants_certificate=settings.listen.tls_client_required)
