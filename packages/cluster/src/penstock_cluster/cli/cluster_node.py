"""``penstock cluster node``, which runs one machine of a cluster with its server of the engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock_core.vocabulary.errors import InvalidArgument, PenstockError
from penstock_server.cli.serving.realm_process import FAILED, log_failure, log_format
from penstock_server.cli.shared.choosing import chosen, shown, with_users
from penstock_server.cli.shared.configuring import server_flags
from penstock_server.cli.shared.server_flags import LOG, PORTS, flags_of

if TYPE_CHECKING:
    from penstock_server.settings import Settings

_SET_BY_COMMAND: Final = frozenset(
    (
        "cluster.engine",
        "cluster.node",
        "cluster.monitors",
        "cluster.tls_authority",
        "cluster.tls_certificate",
        "cluster.tls_key",
    )
)
"""Settings that the command sets itself."""


def register(commands: typer.Typer) -> None:
    """Add the command ``node`` to the group ``cluster``."""
    commands.command("node")(node)


@server_flags(*PORTS, "settings", *LOG)
def node(
    data: Annotated[
        Path,
        typer.Option("--data", help="Directory for this machine's data; created if it is missing."),
    ],
    name: Annotated[str, typer.Option(help="Name of this machine, one of those in --peers.")],
    peers: Annotated[
        str,
        typer.Option(
            help="All machines including this one, the same list on each: NAME=HOST, or "
            "NAME=HOST:PORT if the engine's ports are not 4222 to 4224.",
            metavar="NAME=HOST",
        ),
    ],
    secret_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the cluster's secret, the same on each machine.", metavar="FILE"
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(help="Address to listen on. [default: this machine's host in --peers]"),
    ] = None,
    **written: Any,
) -> None:
    """Run one machine of a cluster: a server of the storage engine, and a node of the realm.

    Run the same command on three machines to make a cluster. Each starts a NATS server as a child
    process, with a configuration, a password and certificates derived from the secret. It waits
    for a majority of the servers, and then serves or stands by as `penstock serve --cluster` does.
    The NATS server is restarted if it dies, and ends with the command. It logs to
    engine/server.log in the directory, and its data stays there for the next start.

    Between machines the engine uses TLS, and accepts only machines with a certificate derived from
    the secret. The realm then requires users (`access.mode` is mandatory unless it is set). For
    the other commands of this group, the directory has a settings file, penstock.toml.

    \b
    Examples:
      openssl rand -hex 32 > cluster.secret
      penstock cluster node --data ./data --name n1 --secret-file cluster.secret \\
        --peers n1=10.0.0.1,n2=10.0.0.2,n3=10.0.0.3
      penstock cluster status --settings ./data/penstock.toml
    """
    flags = {
        **flags_of(written),
        "listen.host": listen,
        "cluster.secret_file": None if secret_file is None else str(secret_file.expanduser()),
    }
    try:
        _run(data.expanduser(), name, peers, listen=listen, file=written["settings"], flags=flags)
    except Exception as error:  # noqa: BLE001  every failure is logged like the rest
        log_failure(error)
        raise typer.Exit(FAILED) from None


def _run(
    data: Path,
    name: str,
    peers: str,
    listen: str | None,
    file: Path | None,
    flags: dict[str, Any],
) -> None:
    """Read the settings, configure the log, and run the engine server and the node."""
    from penstock_server import logs

    try:
        settings, host = _settings_of(name, peers, listen, file=file, flags=flags)
    except PenstockError:
        # Without settings the format comes from the flags, so that the error is readable.
        logs.configure("info", log_format(flags))
        raise
    logs.configure(settings.log.level, settings.log.format)
    # These imports load Arrow and the server, so they follow the check of the flags.
    from penstock_cluster.bootstrap.engine_peers import parse_peers
    from penstock_cluster.serving.beside_engine import plan_of, serve_beside_engine

    plan = plan_of(parse_peers(peers), name, host, secret_file=settings.cluster.secret_file)
    serve_beside_engine(data, settings, plan)


def _settings_of(
    name: str, peers: str, listen: str | None, file: Path | None, flags: dict[str, Any]
) -> tuple[Settings, str | None]:
    """Return the settings of the node, and the address to listen at if one was given. Raises
    ``InvalidArgument``."""
    from penstock_cluster.bootstrap.engine_peers import own_peer, parse_peers

    origins = {setting.option: setting.origin for setting in shown(file, flags)}
    for option in sorted(_SET_BY_COMMAND):
        if origins[option] != "default":
            raise InvalidArgument(
                f"{option} is set, but `penstock cluster node` starts an engine and sets this "
                f"option itself: leave it out, or use `penstock serve --cluster` with an existing "
                f"engine"
            )
    peer = own_peer(parse_peers(peers), name)
    if origins["listen.host"] == "default":
        flags = {**flags, "listen.host": peer.host}
    else:
        listen = chosen(file, flags).listen.host
    if not peer.is_local:
        return chosen(file, with_users(file, flags)), listen
    return chosen(file, flags), listen
