"""``penstock selector``, which explains a selector and shows which events it matches (SEM F)."""

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
"""Number of ids of matching events to show."""

commands = command_group("Explain selectors.")


def register(app: typer.Typer) -> None:
    app.add_typer(commands, name="selector")


@commands.callback()
def _group() -> None:
    """Explain selectors."""


@commands.command()
def check(
    text: Annotated[str, typer.Argument(help="The selector.", metavar="SELECTOR")],
    channel: Annotated[
        str,
        typer.Option(
            help="Channel to test the selector on, with its stored events.", metavar="NAME"
        ),
    ] = "",
    format: ListFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Explain a selector, or show the position of its error.

    With a channel, the command also shows the types that the selector's names have had in events
    there, comparisons whose types never match, and which stored events match. To count these, it
    reads the matching events from the realm. Without a channel it does not connect to a realm.

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
        store = realm.channels.get(channel)
        columns, messages = store.columns(), decoder_of(store)
        if messages is not None:
            columns = messages.seen_in(columns)
        names = checked(selector.expression, columns)
        _show(selector, names, _match_summary(store, selector), format=format)


def _match_summary(channel: Channel, selector: Selector) -> dict[str, Any]:
    """Return the number of stored events that a selector matches, and their lowest ids."""
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


def _show(
    selector: Selector, checked: Checked, match_summary: dict[str, Any] | None, format: str
) -> None:
    from penstock_core.columns.selectors.explaining import explained

    lines = explained(selector.expression)
    if format == "json":
        document = {"selector": selector.text, "valid": True, "chooses": lines}
        write_json(
            {
                **document,
                "names": checked.names,
                "remarks": checked.remarks,
                **(match_summary or {}),
            }
        )
        return
    write_facts([("selector", selector.text), ("chooses", f"events where {lines[0]}")])
    for line in lines[1:]:
        write(f"          {line}")
    if checked.names:
        write("")
        _show_names(checked, has_types=match_summary is not None)
    for remark in checked.remarks:
        write(f"note: {remark}")
    if match_summary is not None:
        write("")
        write(_summary_text(match_summary))


def _show_names(checked: Checked, *, has_types: bool) -> None:
    rows = [
        (name.name, name.kind, " or ".join(name.types or ()) or "not seen yet")[: 2 + has_types]
        for name in checked.names
    ]
    write_table(("name", "kind", "stored as")[: 2 + has_types], rows, "")


def _summary_text(match_summary: dict[str, Any]) -> str:
    matches, ids = match_summary["matches"], ", ".join(map(str, match_summary["first_ids"]))
    events = count(match_summary["events"], "event")
    summary = f"matches {matches:,} of {events} on {match_summary['channel']}"
    if not matches:
        return summary
    more = ", …" if matches > len(match_summary["first_ids"]) else ""
    return f"{summary}: {'event' if matches == 1 else 'events'} {ids}{more}"


def _fault(error: Any) -> dict[str, Any]:
    """Return the description of an invalid selector for JSON output."""
    return {
        "valid": False,
        "line": error.line,
        "column": error.column,
        "expected": error.expected,
        "message": str(error),
    }
