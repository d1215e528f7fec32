"""HTTP has all functions of the command line, except for local ones, which the guide lists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import typer.main
from typer import Typer

from penstock_server.cli.program import app
from penstock_server.frontends.http.routes import TABLE

GUIDE = Path(__file__).parents[5] / "docs" / "guide" / "rest.md"

_C, _Q = "channels/{channel}", "queues/{queue}"
_D = f"{_C}/durables/{{durable}}"

OVER_HTTP = {
    "channel create": "POST channels",
    "channel list": "GET channels",
    "channel show": f"GET {_C}",
    "channel state": f"GET {_C}/state",
    "channel edit": f"PATCH {_C}",
    "channel missing": f"GET {_C}/missing",
    "channel purge": f"POST {_C}/purge",
    "channel delete": f"DELETE {_C}",
    "channel maintain": f"POST {_C}/maintain",
    "channel export": f"GET {_C}/export",
    "channel import": "POST imports",
    "publish": f"POST {_C}/events",
    "request": f"POST {_C}/requests",
    "subscribe": f"GET {_C}/live",
    "browse": f"GET {_C}/events",
    "delivery": f"GET {_C}/delivery",
    "durable create": f"POST {_C}/durables",
    "durable list": f"GET {_C}/durables",
    "durable show": f"GET {_D}",
    "durable browse": f"GET {_D}/events",
    "durable purge": f"POST {_D}/purge",
    "durable unbind": f"POST {_D}/unbind",
    "durable seek": f"POST {_D}/seek",
    "durable delete": f"DELETE {_D}",
    "queue create": "POST queues",
    "queue list": "GET queues",
    "queue show": f"GET {_Q}",
    "queue edit": f"PATCH {_Q}",
    "queue delete": f"DELETE {_Q}",
    "queue missing": f"GET {_Q}/missing",
    "queue purge": f"POST {_Q}/purge",
    "queue maintain": f"POST {_Q}/maintain",
    "queue push": f"POST {_Q}/events",
    "queue pop": f"POST {_Q}/pop",
    "queue peek": f"GET {_Q}/events",
    "queue export": f"GET {_Q}/export",
    "queue import": "POST imports",
    "join create": "POST joins",
    "join list": "GET joins",
    "join delete": "DELETE joins/{id}",
    "schedule list": "GET schedule",
    "schedule cancel": f"DELETE {_C}/schedule/{{number}}",
    "redrive": "POST redrive",
    "selector check": "POST selectors/check",
    "topic list": f"GET {_C}/topics",
    "topic tail": "GET mqtt",
    "topic retained": f"GET {_C}/retained",
    "topic sessions": "GET mqtt/sessions",
    "topic end": "DELETE mqtt/sessions",
    "topic forget": f"DELETE {_C}/retained",
    "pipeline list": "GET pipelines",
    "pipeline show": "GET pipelines/{pipeline}",
    "user create": "POST users",
    "user password": "POST users/{user}/password",
    "user delete": "DELETE users/{user}",
    "user list": "GET users",
    "user me": "GET me",
    "group create": "POST groups",
    "group add": "PATCH groups/{group}",
    "group remove": "PATCH groups/{group}",
    "group delete": "DELETE groups/{group}",
    "group list": "GET groups",
    "acl grant": "POST acl/grant",
    "acl revoke": "POST acl/revoke",
    "acl list": "GET acl",
    "audit": "GET audit",
    "realm show": "GET realm",
    "realm pause": "PATCH realm",
    "realm resume": "PATCH realm",
    "info": "GET realm",
    "top": "GET rates",
}
"""The route that does what a command does."""


def commands(group: Typer = app) -> Iterator[str]:
    yield from _below(typer.main.get_command(group), "")


def _below(command: object, name: str) -> Iterator[str]:
    words = getattr(command, "commands", None)
    if words is None:
        yield name.strip()
        return
    for word, subcommand in words.items():
        yield from _below(subcommand, f"{name} {word}")


def local() -> set[str]:
    """The commands of the guide's table."""
    _, _, rest = GUIDE.read_text(encoding="utf-8").partition("## What HTTP does not do")
    table, _, _ = rest.partition("\n## ")
    return {
        name
        for row in re.findall(r"^\| (`penstock .*?) \|", table, re.MULTILINE)
        for name in re.findall(r"`penstock ([a-z -]+)`", row)
    }


def test_each_command_has_a_route_or_a_line_in_the_guide() -> None:
    every = set(commands())

    assert every == OVER_HTTP.keys() | local()
    assert not OVER_HTTP.keys() & local()


def test_the_routes_are_there() -> None:
    routes = {f"{route.method} {route.path}" for route in TABLE.routes}

    assert set(OVER_HTTP.values()) - routes == set()
