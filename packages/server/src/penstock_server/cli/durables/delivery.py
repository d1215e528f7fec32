"""``penstock delivery``, which shows who has the events of a channel or queue (SEM D23)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast

import typer

from penstock_core.vocabulary.delivery_runs import EVENT_STATES, OUTSTANDING
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_server.cli.shared import completing
from penstock_server.cli.shared.output import (
    check_redirected,
    write_arrow,
    write_json,
    write_table,
)
from penstock_server.cli.shared.realm import DEFAULT_URL, Url, session
from penstock_server.cli.stores.destinations import find

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock_core.vocabulary.delivery_runs import EventState

_GROUPED_BY: Final = ("durable", "state", "client", "cause")
_SUMS: Final = {
    "events": ("event_id", "count"),
    "since": ("since", "min"),
    "deliveries": ("deliveries", "max"),
    "lease_end": ("lease_end", "min"),
    "delayed_until": ("delayed_until", "min"),
}
"""Columns of a grouped table, with the column and the aggregate that each is made of."""


def register(app: typer.Typer) -> None:
    app.command("delivery")(delivery)


def delivery(
    name: Annotated[
        str,
        typer.Argument(
            help="Name of the channel or queue.", metavar="NAME", autocompletion=completing.stores
        ),
    ],
    durable: Annotated[str | None, typer.Option(help="Only this durable.", metavar="NAME")] = None,
    state: Annotated[
        str,
        typer.Option(
            help=f"States, separated by commas: {', '.join(EVENT_STATES)}.", metavar="STATES"
        ),
    ] = ",".join(OUTSTANDING),
    by_durable: Annotated[
        bool,
        typer.Option(
            "--by-durable",
            help="Count the events of each durable, state and client, with the oldest time.",
        ),
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option("--count", min=1, help="Stop after this many rows.", metavar="N"),
    ] = None,
    format: Annotated[
        Literal["table", "json", "arrow"],
        typer.Option(
            "--format", help="table is for people, json for programs, arrow an Arrow IPC stream."
        ),
    ] = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Show who has each event, and since when: ready, in flight, delayed, acknowledged or dead.

    Nothing changes. Dead events need the right to read the dead event store.

    \b
    Examples:
      penstock delivery orders --by-durable
      penstock delivery orders --durable billing --state in_flight,delayed
      penstock delivery orders --state dead --format json
      penstock delivery orders --format arrow > delivery.arrow
    """
    if format == "arrow":
        check_redirected("delivery.arrow")
    with session(url) as realm:
        store = find(realm, name)
        states = store.delivery_state(durable=durable, states=_states(state), limit=limit)
    _print(_grouped(states) if by_durable else states, format, f"no events of {name} are {state}")


def _states(text: str) -> tuple[EventState, ...]:
    """Return the states in a list. Raises ``InvalidArgument``."""
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in EVENT_STATES]:
        raise InvalidArgument(
            f"state {unknown[0]!r} is unknown; allowed are {', '.join(EVENT_STATES)}"
        )
    return cast("tuple[EventState, ...]", tuple(names))


def _grouped(states: pa.Table) -> pa.Table:
    """Return a row for each durable, state, client and cause, with counts and oldest times."""
    import pyarrow as pa

    for name in _GROUPED_BY:
        index = states.schema.get_field_index(name)
        states = states.set_column(index, name, states[name].cast(pa.string()))
    sums = states.group_by(list(_GROUPED_BY)).aggregate(list(_SUMS.values()))
    table = sums.select([*_GROUPED_BY, *(f"{column}_{kind}" for column, kind in _SUMS.values())])
    table = table.rename_columns([*_GROUPED_BY, *_SUMS])
    return table.sort_by([(name, "ascending") for name in _GROUPED_BY])


def _print(table: pa.Table, format: str, nothing: str) -> None:
    """Print the delivery states in a format; ``nothing`` is the sentence for an empty table."""
    if format == "arrow":
        write_arrow(table)
        return
    rows: list[dict[str, Any]] = table.to_pylist()
    if format == "json":
        write_json(rows)
        return
    # Most columns have values for some states only.
    names = [name for name in table.column_names if table[name].null_count < table.num_rows]
    write_table(names, [[row[name] for name in names] for row in rows], nothing)
