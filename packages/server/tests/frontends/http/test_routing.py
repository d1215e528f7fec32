"""The route table finds the route of a method and path."""

from __future__ import annotations

import pytest

from penstock_core.vocabulary.errors import InvalidArgument
from penstock_server.frontends.http.routes import TABLE
from penstock_server.frontends.http.routing import Route, RouteMatch


def _path_of(route: Route) -> tuple[str, dict[str, str]]:
    """Return a path of the route with the values of its parameters."""
    names = [part[1:-1] for part in route.path.split("/") if part[0] == "{"]
    path = route.path
    for name in names:
        path = path.replace(f"{{{name}}}", f"a%2F{name}")
    return path, {name: f"a/{name}" for name in names}


@pytest.mark.parametrize("route", TABLE.routes, ids=lambda route: route.name)
def test_each_route_is_found_with_its_parameters(route: Route) -> None:
    path, params = _path_of(route)

    assert TABLE.find(route.method, f"/{path}") == RouteMatch(
        route, TABLE.signatures[route], params
    )


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/channels/orders/events", frozenset(("GET", "POST"))),
        ("/channels/orders/purge", frozenset(("POST",))),
        ("/channels//events", frozenset()),
        ("/channels/orders/nothing/at/all", frozenset()),
        ("", frozenset()),
    ],
)
def test_a_path_has_its_methods(path: str, methods: frozenset[str]) -> None:
    assert TABLE.find("TRACE", path) == methods


def test_a_parameter_must_be_utf8() -> None:
    with pytest.raises(InvalidArgument, match="percent-encoded"):
        TABLE.find("GET", "/channels/%ff")
