"""The route table finds the route of a method and path."""

from __future__ import annotations

import pytest

from penstock_core.vocabulary.errors import InvalidArgument
from penstock_server.frontends.http.routes import TABLE
from penstock_server.frontends.http.routing import (
    RECENT_MAX,
    RECENT_PATH_MAX,
    Route,
    RouteMatch,
    RouteTable,
)


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


def test_a_repeated_path_has_the_same_route_and_few_paths_are_kept() -> None:
    table = RouteTable(TABLE.routes)
    first = table.find("GET", "/channels/orders")
    assert table.find("GET", "/channels/orders") is first
    assert table.find("PATCH", "/channels/orders") != first

    for number in range(2 * RECENT_MAX):
        match = table.find("GET", f"/channels/c{number}")
        assert isinstance(match, RouteMatch)
        assert match.params == {"channel": f"c{number}"}
        assert len(table._recent) <= RECENT_MAX
    table.find("GET", "/channels/" + "x" * RECENT_PATH_MAX)
    assert all(len(path) <= RECENT_PATH_MAX for _, path in table._recent)
    assert table.find("GET", "/channels/orders") == first
