"""``penstock apply`` and ``penstock export``: a realm as a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.missing_packages import from_package
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_server.cli.shared.asking import Yes, confirm
from penstock_server.cli.shared.output import ListFormat, count, note, write, write_json
from penstock_server.cli.shared.realm import DEFAULT_URL, Url, session

if TYPE_CHECKING:
    from penstock_tools.topology import Found, Plan, PlannedStep, Topology

DIFFERS: Final = 3
"""Exit status of ``apply --check`` when there is something to change."""
IMMOVABLE: Final = 1
"""Exit status when something cannot be changed in place."""
_VERBS: Final = {"+": "create", "~": "change", "-": "delete"}
_HEADING: Final = """\
What realm {realm} consists of, without events and secrets.
Written by: penstock export --topology
Read by: penstock apply FILE"""

File = Annotated[Path, typer.Argument(help="The topology, a TOML file.", metavar="FILE")]
Check = Annotated[
    bool,
    typer.Option(
        "--check",
        "--dry-run",
        help="Only show the plan. Exit status: 0 nothing differs, 3 something does.",
    ),
]
Prune = Annotated[bool, typer.Option("--prune", help="Also delete what FILE does not name.")]


def register(app: typer.Typer) -> None:
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
    """Make a realm as a file says: channels, queues, durables, joins, users, groups, rights.

    What differs is shown first, then changed; a second time there is nothing to do. What would
    lose events, and whatever --prune deletes, is asked for. What cannot be changed in place is
    told, with what would be lost, and then nothing is changed.

    \b
    Examples:
      penstock apply shop.toml
      penstock apply shop.toml --check --prune
    """
    from penstock_tools import topology

    wanted = topology.load(file)
    with session(url) as realm:
        existing = topology.look(realm, wanted)
        check_pipelines(wanted, existing)
        plan = topology.plan(wanted, existing, prune=prune)
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
            _ask(plan, yes=yes)
        topology.apply(realm, plan, done=lambda step: note(f"{_VERBS[step.sign]}d {step.what}"))


def export(
    file: Annotated[
        Path | None,
        typer.Argument(help="Where to write it. [default: standard output]", metavar="[FILE]"),
    ] = None,
    topology: Annotated[
        bool, typer.Option("--topology", help="What the realm consists of, as TOML.")
    ] = False,
    yes: Yes = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Write what a realm consists of as a file that `penstock apply` reads.

    It has no events and no passwords. Events are exported with `penstock channel export` and
    `penstock queue export`.

    \b
    Examples:
      penstock export --topology shop.toml
      penstock export --topology | diff shop.toml -
    """
    if not topology:
        raise typer.BadParameter(
            "say what to export: --topology; events are exported with penstock channel export and "
            "penstock queue export"
        )
    from penstock_tools.topology import look, to_toml, topology_of

    with session(url) as realm:
        existing = look(realm)
    text = to_toml(topology_of(existing), heading=_HEADING.format(realm=existing.realm))
    if not existing.keeps_access:
        note("access.mode is off, so there are no users, groups and rights to write")
    if file is None:
        write(text.rstrip("\n"))
        return
    if file.exists():
        confirm(f"Replace {file}?", yes=yes)
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidArgument(f"{file}: {error.strerror or error}") from error
    kinds = [store.kind for store in existing.stores.values()]
    channels, queues = kinds.count("channel"), kinds.count("queue")
    note(f"{file} written: {count(channels, 'channel')}, {count(queues, 'queue')}")


# --- the plan -----------------------------------------------------------------------------


def write_plan(plan: Plan) -> None:
    """Print what a plan would do, for people."""
    for item in plan.immovable:
        write(f"! {item.what} cannot be changed in place")
        for detail in item.details:
            write(f"    {detail}")
        write(f"    created again it would lose {item.loses}")
        write(f"    if that may go: {item.remedy}, and apply again")
    for step in plan.steps:
        write(f"{step.sign} {step.what}")
        for detail in step.details:
            write(f"    {detail}")
        if step.loses:
            write(f"    loses {step.loses}")
    if plan.unnamed:
        names = ", ".join(plan.unnamed)
        write(f"not in the file, and left alone (--prune deletes): {names}")
    if plan.kept:
        write(f"not in the file, but kept, so that nobody is locked out: {', '.join(plan.kept)}")
    write(_summary(plan))


def _summary(plan: Plan) -> str:
    if plan.immovable:
        return "nothing is changed, because of what cannot be changed in place"
    if not plan.steps:
        return "nothing to change"
    signs = [step.sign for step in plan.steps]
    return ", ".join(f"{signs.count(sign)} to {_VERBS[sign]}" for sign in _VERBS if sign in signs)


def _ask(plan: Plan, *, yes: bool) -> None:
    deleted = [step.what for step in plan.losses if step.sign == "-"]
    changed = [step.what for step in plan.losses if step.sign != "-"]
    questions = [f"Delete {', '.join(deleted)}"] if deleted else []
    questions += [f"{'change' if deleted else 'Change'} {', '.join(changed)}"] if changed else []
    confirm(f"{' and '.join(questions)}, with the losses shown above?", yes=yes)


def _document(plan: Plan) -> dict[str, Any]:
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
    return {
        "verb": _VERBS[step.sign],
        "what": step.what,
        "changes": list(step.details),
        "loses": step.loses,
    }


# --- pipelines ----------------------------------------------------------------------------


def check_pipelines(wanted: Topology, existing: Found) -> None:
    """Raise ``InvalidArgument`` for a pipeline whose definition is wrong, or that needs a channel,
    queue or durable which neither the file nor the realm has."""
    stores = {(store.kind, store.name) for store in wanted.stores}
    stores |= {(store.kind, name) for name, store in existing.stores.items()}
    durables = {(store.name, durable.name) for store in wanted.stores for durable in store.durables}
    durables |= {
        (name, durable) for name, store in existing.stores.items() for durable in store.durables
    }
    for pipeline in wanted.pipelines:
        with wanted.naming((*pipeline.place, "file"), "pipeline"):
            for kind, name, durable in _needs(pipeline.path):
                if (kind, name) not in stores:
                    raise InvalidArgument(
                        f"{pipeline.path} needs {kind} {name}; add a [[{kind}]] of that name"
                    )
                if durable and (name, durable) not in durables:
                    raise InvalidArgument(
                        f"{pipeline.path} needs durable {durable} of {name}; add a "
                        f"[[channel.durable]] to that channel"
                    )


def _needs(path: Path) -> Iterator[tuple[str, str, str]]:
    """The channels and queues that a pipeline reads and writes by name, each with its durable."""
    with from_package("penstock_spark"):
        from penstock_spark.pipelines import load  # needs no Spark

    pipeline = load(path)
    for source in pipeline.sources:
        if source.queue:
            yield "queue", source.queue, ""
        names = (source.channel,) if isinstance(source.channel, str) else source.channel
        for name in names:
            if name and not any(sign in name for sign in "*?,"):
                yield "channel", name, source.durable
    for step in pipeline.steps:
        for target in step.writes():
            kind, _, name = target.partition(" ")
            if kind in ("channel", "queue"):
                yield kind, name, ""
