"""``penstock apply`` and ``penstock export``: the configuration of a realm as a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.missing_packages import from_package
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_server.cli.shared.confirmation import Yes, confirm
from penstock_server.cli.shared.output import ListFormat, count, note, write, write_json
from penstock_server.cli.shared.realm import DEFAULT_URL, Url, session

if TYPE_CHECKING:
    from penstock_tools.topology import Found, Plan, PlannedStep, Topology

DIFFERS: Final = 3
"""Exit status of ``apply --check`` if the realm differs from the file."""
IMMOVABLE: Final = 1
"""Exit status if a difference cannot be resolved in place."""
_VERBS: Final = {"+": "create", "~": "change", "-": "delete"}
"""Verb for each sign of a step; with ``d`` appended it is the verb's past tense."""
_HEADING: Final = """\
The configuration of realm {realm}, without events and secrets.
Written by: penstock export --topology
Read by: penstock apply FILE"""

File = Annotated[Path, typer.Argument(help="The topology, a TOML file.", metavar="FILE")]
Check = Annotated[
    bool,
    typer.Option(
        "--check",
        "--dry-run",
        help="Only show the plan. Exit status: 0 no differences, 3 differences.",
    ),
]
Prune = Annotated[
    bool, typer.Option("--prune", help="Also delete objects that FILE does not name.")
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module to ``app``."""
    app.command("apply")(apply)
    app.command("export")(export)


def apply(
    file: File,
    check: Check = False,
    prune: Prune = False,
    yes: Yes = False,
    format: ListFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Make a realm match a file: channels, queues, durables, joins, users, groups, rights.

    Shows the differences, then changes the realm; applying the same file again changes nothing.
    Asks before changes that lose events, and before deletions by --prune. If a difference cannot be
    resolved in place, it is shown with the data that would be lost, and nothing is changed.

    \b
    Examples:
      penstock apply shop.toml
      penstock apply shop.toml --check --prune
    """
    from penstock_tools import topology

    file_topology = topology.load(file)
    with session(url) as realm:
        existing = topology.look(realm, file_topology)
        # The check comes before the plan, so that a missing channel is an error of the file and
        # nothing is changed.
        check_pipelines(file_topology, existing)
        plan = topology.plan(file_topology, existing, prune=prune)
        if format == "json":
            write_json(_document(plan))
        else:
            write_plan(plan)
        if plan.immovable:
            raise typer.Exit(IMMOVABLE)
        if check:
            raise typer.Exit(DIFFERS if plan.steps else 0)
        if not plan.steps:
            return
        if plan.losses:
            _confirm_losses(plan, yes=yes)
        topology.apply(realm, plan, done=lambda step: note(f"{_VERBS[step.sign]}d {step.what}"))


def export(
    file: Annotated[
        Path | None,
        typer.Argument(help="The file to write. [default: standard output]", metavar="[FILE]"),
    ] = None,
    topology: Annotated[
        bool, typer.Option("--topology", help="Write the configuration of the realm as TOML.")
    ] = False,
    yes: Yes = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Write the configuration of a realm as a file that `penstock apply` reads.

    The file has no events and no passwords. Use `penstock channel export` and
    `penstock queue export` to export events.

    \b
    Examples:
      penstock export --topology shop.toml
      penstock export --topology | diff shop.toml -
    """
    # Without the option, a user who wants events would get a file that has none.
    if not topology:
        raise typer.BadParameter(
            "--topology is missing; use penstock channel export or penstock queue export to export "
            "events"
        )
    from penstock_tools.topology import look, to_toml, topology_of

    with session(url) as realm:
        existing = look(realm)
    text = to_toml(topology_of(existing), heading=_HEADING.format(realm=existing.realm))
    if not existing.keeps_access:
        note("access.mode is off, so the file has no users, groups and rights")
    if file is None:
        write(text.rstrip("\n"))
        return
    write_file(file, text, yes=yes)
    kinds = [store.kind for store in existing.stores.values()]
    channels, queues = kinds.count("channel"), kinds.count("queue")
    note(f"{file} written: {count(channels, 'channel')}, {count(queues, 'queue')}")


def write_file(file: Path, text: str, *, yes: bool) -> None:
    """Write a topology to a file, after confirmation if the file exists. Raises
    ``InvalidArgument`` if it cannot be written."""
    if file.exists():
        confirm(f"Replace {file}?", yes=yes)
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidArgument(f"{file}: {error.strerror or error}") from error


# --- the plan -----------------------------------------------------------------------------


def write_plan(plan: Plan) -> None:
    """Print a plan as text."""
    for item in plan.immovable:
        write(f"! {item.what} cannot be changed in place")
        for detail in item.details:
            write(f"    {detail}")
        write(f"    deleting and creating it again would lose {item.loses}")
        write(f"    to accept that loss: {item.remedy}, then apply again")
    for step in plan.steps:
        write(f"{step.sign} {step.what}")
        for detail in step.details:
            write(f"    {detail}")
        if step.loses:
            write(f"    loses {step.loses}")
    if plan.unnamed:
        names = ", ".join(plan.unnamed)
        write(f"not in the file, unchanged (--prune deletes them): {names}")
    if plan.kept:
        names = ", ".join(plan.kept)
        write(f"not in the file, but kept to protect administrative access: {names}")
    write(_summary(plan))


def _summary(plan: Plan) -> str:
    """Return the last line of a plan, such as ``2 to create, 1 to delete``."""
    if plan.immovable:
        return "nothing is changed, because some differences cannot be resolved in place"
    if not plan.steps:
        return "nothing to change"
    signs = [step.sign for step in plan.steps]
    return ", ".join(f"{signs.count(sign)} to {_VERBS[sign]}" for sign in _VERBS if sign in signs)


def _confirm_losses(plan: Plan, *, yes: bool) -> None:
    """Ask once for all steps that destroy data, and end the command if the answer is no."""
    deleted = [step.what for step in plan.losses if step.sign == "-"]
    changed = [step.what for step in plan.losses if step.sign != "-"]
    questions = [f"Delete {', '.join(deleted)}"] if deleted else []
    questions += [f"{'change' if deleted else 'Change'} {', '.join(changed)}"] if changed else []
    confirm(f"{' and '.join(questions)}, with the losses shown above?", yes=yes)


def _document(plan: Plan) -> dict[str, Any]:
    """Return a plan as the object that ``--format json`` prints."""
    return {
        "steps": [_step(step) for step in plan.steps],
        "immovable": [
            {
                "what": item.what,
                "changes": list(item.details),
                "loses": item.loses,
                "remedy": item.remedy,
            }
            for item in plan.immovable
        ],
        "unnamed": list(plan.unnamed),
        "kept": list(plan.kept),
    }


def _step(step: PlannedStep) -> dict[str, Any]:
    """Return a step of a plan as a part of the object that ``--format json`` prints."""
    return {
        "verb": _VERBS[step.sign],
        "what": step.what,
        "changes": list(step.details),
        "loses": step.loses,
    }


# --- pipelines ----------------------------------------------------------------------------


def check_pipelines(file_topology: Topology, existing: Found) -> None:
    """Raise ``InvalidArgument`` if the definition of a pipeline is invalid, or if it needs a
    channel, queue or durable that is neither in the file nor in the realm."""
    stores = {(store.kind, store.name) for store in file_topology.stores}
    stores |= {(store.kind, name) for name, store in existing.stores.items()}
    durables = {
        (store.name, durable.name) for store in file_topology.stores for durable in store.durables
    }
    durables |= {
        (name, durable) for name, store in existing.stores.items() for durable in store.durables
    }
    for pipeline in file_topology.pipelines:
        with file_topology.errors_located_at((*pipeline.place, "file"), "pipeline"):
            for kind, name, durable in _stores_of_pipeline(pipeline.path):
                if (kind, name) not in stores:
                    raise InvalidArgument(
                        f"{pipeline.path} needs {kind} {name}; add a [[{kind}]] of that name"
                    )
                if durable and (name, durable) not in durables:
                    raise InvalidArgument(
                        f"{pipeline.path} needs durable {durable} of {name}; add a "
                        f"[[channel.durable]] to that channel"
                    )


def _stores_of_pipeline(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the kind, the name and the durable of each channel and queue that a pipeline names. The
    durable is empty if the pipeline uses none."""
    with from_package("penstock_spark"):
        from penstock_spark.pipelines import load  # needs no Spark

    pipeline = load(path)
    for source in pipeline.sources:
        if source.queue:
            yield "queue", source.queue, ""
        names = (source.channel,) if isinstance(source.channel, str) else source.channel
        for name in names:
            # The channels of a pattern or a list may be created later, so they are not checked.
            if name and not any(sign in name for sign in "*?,"):
                yield "channel", name, source.durable
    for step in pipeline.steps:
        for target in step.writes():
            kind, _, name = target.partition(" ")
            if kind in ("channel", "queue"):
                yield kind, name, ""
