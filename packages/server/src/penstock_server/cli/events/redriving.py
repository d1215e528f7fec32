"""``penstock redrive``, which publishes dead events again (SEM T10)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from penstock_server.cli.shared import completing
from penstock_server.cli.shared.output import ListFormat, count, write, write_json
from penstock_server.cli.shared.progress import ProgressDisplay, is_visible, progress
from penstock_server.cli.shared.realm import DEFAULT_URL, Url, session
from penstock_server.cli.stores.destinations import find

if TYPE_CHECKING:
    from penstock.client.sync.sync import Session
    from penstock_core.api.joins import Redriven

T = TypeVar("T")

POLL_S = 0.2
"""Seconds between two queries of the progress."""


def register(app: typer.Typer) -> None:
    app.command("redrive")(redrive)


def redrive(
    store: Annotated[
        str,
        typer.Argument(
            help="The channel or queue with the dead events.",
            metavar="DES",
            autocompletion=completing.stores,
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            help="Destination of all events. [default: the store each event was published to]",
            metavar="NAME",
        ),
    ] = "",
    selector: Annotated[str, typer.Option(help="Selector; only events that match it.")] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show which events would be moved.")
    ] = False,
    format: ListFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Publish dead events again, each exactly once, and remove them from the dead event store.

    Run the command again to continue an interrupted redrive.

    \b
    Examples:
      penstock redrive dead/orders --dry-run
      penstock redrive dead/orders --to orders --selector "price > 5"
    """
    with session(url) as realm:
        outcome = redriven(realm, store, to, selector=selector, dry_run=dry_run)
    if format == "json":
        write_json(outcome)
        return
    verb = "would be moved" if outcome.dry_run else "moved"
    write(f"{count(outcome.moved, 'event')} {verb} from {store}, {outcome.left:,} left")
    for name, moved in sorted(outcome.destinations.items()):
        write(f"  {name}  {moved:,}")


def redriven(realm: Session, store: str, to: str, selector: str, *, dry_run: bool) -> Redriven:
    """Redrive dead events; show the progress at a terminal."""

    def work() -> Redriven:
        return realm.redrive(store, to, selector=selector, dry_run=dry_run)

    if dry_run or not is_visible():
        return work()
    dead_events = find(realm, store)
    before = dead_events.info()
    with progress("redriving", before.events) as display:
        return watched(
            work, lambda: dead_events.info().counters.redriven - before.counters.redriven, display
        )


def watched(work: Callable[[], T], done: Callable[[], int], display: ProgressDisplay) -> T:
    """Run ``work`` in a thread, and show how much of it is done until it ends."""
    with ThreadPoolExecutor(1) as worker:
        result: Future[T] = worker.submit(work)
        while wait([result], timeout=POLL_S).not_done:
            display.show(done())
        return result.result()
