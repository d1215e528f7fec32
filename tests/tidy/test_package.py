"""The names of the package and of attributes: those there are, and no others."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

import penstock
from penstock.client.connection.arguments import Duration
from penstock.client.handles import attributes
from penstock_core import channel_types, durables, engines
from penstock_core.vocabulary import errors
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.durable_attributes import DurableAttributes
from penstock_server.bootstrap import registered


def test_a_misspelt_name_is_an_error_that_says_so() -> None:
    with pytest.raises(
        AttributeError, match="module 'penstock' has no attribute 'NameDoesNotExits'"
    ):
        penstock.NameDoesNotExits  # type: ignore[attr-defined]  # noqa: B018


def test_every_error_is_a_name_of_the_package() -> None:
    every = {
        name
        for name, member in vars(errors).items()
        if isinstance(member, type) and issubclass(member, errors.PenstockError)
    }

    assert every <= set(penstock.__all__)
    assert all(getattr(penstock, name) is getattr(errors, name) for name in every)


def test_what_type_checkers_see_is_what_there_is() -> None:
    tree = ast.parse(inspect.getsource(penstock))
    (checked,) = [node for node in tree.body if isinstance(node, ast.If)][:1]
    imported = {
        alias.name
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    assert imported | {"__version__"} == set(penstock.__all__)
    assert all(getattr(penstock, name) is not None for name in penstock.__all__)


def test_help_begins_with_the_names_to_begin_with() -> None:
    """The first screen of ``help(penstock)``: an example, and what its names are for."""
    assert penstock.__doc__ is not None
    screen = penstock.__doc__.splitlines()[:30]
    rows = [line.split("``")[1] for line in screen if line.startswith("``")]

    assert {"Realm", "connect", "Channel", "Queue", "Durable", "Event"} < set(rows)
    for row in rows:
        assert hasattr(penstock, row.removeprefix("penstock.")), row
    assert any("penstock.Realm(" in line for line in screen)


def test_completion_shows_what_there_is() -> None:
    assert dir(penstock) == sorted(penstock.__all__)
    assert {"Realm", "connect", "NameDoesNotExist", "aio", "Channel"} <= set(dir(penstock))
    assert set(penstock.aio.__all__) - {"Opening"} <= set(dir(penstock))


def test_a_look_at_the_names_loads_none_of_them() -> None:
    """Neither the version nor completion costs a client what loading Arrow or the server takes."""
    code = (
        "import sys, penstock; dir(penstock), penstock.__version__; "
        "heavy = ('pyarrow', 'penstock.', 'penstock_'); "
        "print([name for name in sys.modules if name.startswith(heavy)])"
    )

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ran.stdout == "['penstock_core', 'penstock_core.version']\n"


def test_the_asyncio_client_is_there_without_an_import_of_its_own() -> None:
    code = "import penstock; print(penstock.aio.connect.__module__)"

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ran.stdout == "penstock.aio\n"


def fields(kind: Any) -> set[str]:
    return {field.name for field in msgspec.structs.fields(kind)}


def test_attributes_are_those_the_realm_knows() -> None:
    of_channels = get_type_hints(penstock.ChannelAttributes)
    of_queues = get_type_hints(penstock.QueueAttributes)

    assert set(of_channels) == fields(Definition) - {"kind", "max_deliveries", "backoff"}
    assert set(of_queues) == fields(Definition) - {"kind", "archive", "topics", "payload"}
    assert set(get_type_hints(penstock.StorageProperties)) == fields(Storage)
    fixed = {"kind", "type", "engine", "keys", "start_event_id"}
    assert set(get_type_hints(penstock.EditedAttributes)) == fields(Definition) - fixed
    of_durables = get_type_hints(attributes.NewDurableAttributes)
    as_given = {"backoff": attributes.BackoffTimes | None, "ack_timeout": Duration}
    assert of_durables == get_type_hints(DurableAttributes) | as_given


def test_types_and_engines_are_those_the_realm_knows() -> None:
    assert set(get_args(attributes.ChannelType)) == set(registered(channel_types, "TYPE"))
    assert set(get_args(attributes.Engine)) == set(registered(engines, "ENGINE"))
    assert set(get_args(attributes.DurableType)) == set(registered(durables, "KIND"))
