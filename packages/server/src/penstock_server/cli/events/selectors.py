"""``penstock selector``: explains a selector, and shows what it would choose (SEM F)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock_server.cli.shared.grouping import command_group
from penstock_server.cli.shared.messages import decoder_of
from penstock_server.cli.shared.output import (
    ListFormat,
    count,
    write,
    write_facts,
    write_json,
    write_table,
)
from penstock_server.cli.shared.realm import DEFAULT_URL, Url, session

if TYPE_CHECKING:
    from penstock.client.sync.sync import Channel
    from penstock_core.columns.selectors import Selector
    from penstock_core.columns.selectors.checking import Checked

SAMPLE: Final = 5
"""Number of ids of matching events that are shown."""

commands = command_group("Understand selectors.")


def register(app: typer.Typer) -> None:
    app.add_typer(commands, name="selector")


@commands.callback()
def _group() -> None:
    """Understand selectors."""


@commands.command()
def check(
    text: Annotated[str, typer.Argument(help="The selector.", metavar="SELECTOR")],
    channel: Annotated[
        str, typer.Option(help="Say what it would choose there.", metavar="NAME")
    ] = "",
    format: ListFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Say what a selector means, or where it is wrong.

    With a channel: which of its names events there have had, and as what; comparisons whose
    types never match; and which stored events it chooses now. The realm sends those events to
    have them counted. Without a channel no realm is asked.

    \b
    Examples:
      penstock selector check "price > 5 AND sku LIKE 'a%'"
      penstock selector check "prise > 5" --channel orders
    """
    from penstock_core.columns.selectors import MalformedSelector, Selector
    from penstock_core.columns.selectors.checking import checked

    try:
        selector = Selector(text)
    except MalformedSelector as error:
        if format == "json":
            write_json(_fault(error))
            raise typer.Exit(1) from None
        raise
    if not channel:
        _show(selector, checked(selector.expression), None, format=format)
        return
    with session(url) as realm:
        found = realm.channels.get(channel)
        columns, messages = found.columns(), decoder_of(found)
        if messages is not None:
            columns = messages.seen_in(columns)
        names = checked(selector.expression, columns)
        _show(selector, names, _chosen(found, selector), format=format)


def _chosen(channel: Channel, selector: Selector) -> dict[str, Any]:
    matches = 0
    ids: list[int] = []
    for batch in channel.browse(selector=selector.text).batches():
        matches += len(batch)
        ids += [int(event_id) for event_id in batch.event_ids[: SAMPLE - len(ids)]]
    return {
        "channel": channel.name,
        "events": channel.info().events,
        "matches": matches,
        "first_ids": ids,
    }


def _show(selector: Selector, checked: Checked, chosen: dict[str, Any] | None, format: str) -> None:
    from penstock_core.columns.selectors.explaining import explained

    lines = explained(selector.expression)
    if format == "json":
        document = {"selector": selector.text, "valid": True, "chooses": lines}
        write_json(
            {**document, "names": checked.names, "remarks": checked.remarks, **(chosen or {})}
        )
        return
    write_facts([("selector", selector.text), ("chooses", f"events where {lines[0]}")])
    for line in lines[1:]:
        write(f"          {line}")
    if checked.names:
        write("")
        _show_names(checked, has_types=chosen is not None)
    for remark in checked.remarks:
        write(f"note: {remark}")
    if chosen is not None:
        write("")
        write(_sentence(chosen))


def _show_names(checked: Checked, *, has_types: bool) -> None:
    rows = [
        (name.name, name.kind, " or ".join(name.types or ()) or "not seen yet")[: 2 + has_types]
        for name in checked.names
    ]
    write_table(("name", "kind", "stored as")[: 2 + has_types], rows, "")


def _sentence(chosen: dict[str, Any]) -> str:
    matches, ids = chosen["matches"], ", ".join(map(str, chosen["first_ids"]))
    said = f"matches {matches:,} of {count(chosen['events'], 'event')} on {chosen['channel']}"
    if not matches:
        return said
    more = ", …" if matches > len(chosen["first_ids"]) else ""
    return f"{said}: {'event' if matches == 1 else 'events'} {ids}{more}"


def _fault(error: Any) -> dict[str, Any]:
    return {
        "valid": False,
        "line": error.line,
        "column": error.column,
        "expected": error.expected,
        "message": str(error),
    }
