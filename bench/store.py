"""The JSON file of results: a list of shapes, or one run of everything with its environment."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from bench.report import Result


class Environment(Struct, frozen=True):
    """The code and the machine of a run; figures of different ones do not belong in one table."""

    commit: str
    system: str
    processor: str
    cores: int
    memory_gb: float
    python: str
    libraries: Mapping[str, str]
    peers: Mapping[str, str] = {}
    """Versions of the peers that are installed, by name."""


class FullRun(Struct):
    """Results of ``python -m bench --all``."""

    environment: Environment
    started: str
    load: float
    """Load average of the machine at the start."""
    hours: float
    """Time budget."""
    rule: str
    """The rule that leaves out cells if the budget is too small."""
    is_quick: bool = False
    """Whether the runs are tiny and their figures have no meaning."""
    spent_s: float = 0.0
    """Seconds of all calls so far, with the waits for an idle machine."""
    results: list[Result] = []


Stored = list[Result] | FullRun


class Refused(Exception):
    """A file cannot take these results; the text says why, and what to do."""


def read(file: Path) -> Stored:
    """Return the stored results; an empty list if the file does not exist."""
    if not file.exists():
        return []
    stored: Stored = msgspec.json.decode(file.read_bytes(), type=Stored)
    return stored


def results_of(stored: Stored) -> list[Result]:
    """Return the results of the shapes, however they are stored."""
    return stored.results if isinstance(stored, FullRun) else stored


def write(file: Path, stored: Stored) -> None:
    """Replace the file in one step, so that a killed process leaves the old or the new one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f"{file.name}.new")
    new.write_bytes(msgspec.json.format(msgspec.json.encode(stored)) + b"\n")
    os.replace(new, file)


def shape_results(file: Path) -> list[Result]:
    """Return the results of shapes that were measured one by one. Raises ``Refused`` if the file is
    a run of everything."""
    stored = read(file)
    if isinstance(stored, FullRun):
        raise Refused(f"{file} is a run of everything: add --all, or use another file")
    return stored


def keep(file: Path, result: Result) -> None:
    """Store the result of one shape; results of other shapes stay. Raises ``Refused`` if the file
    is a run of everything."""
    kept = {kept.shape: kept for kept in shape_results(file)} | {result.shape: result}
    write(file, [*kept.values()])


def differences(recorded: Environment, current: Environment) -> Sequence[str]:
    """Return a sentence for each difference that forbids to add runs to a recorded run.

    Peers that were installed since are no difference: their cells have no runs yet.
    """
    sentences = []
    for name in recorded.__struct_fields__:
        before, now = getattr(recorded, name), getattr(current, name)
        if name in ("libraries", "peers"):
            sentences += [
                f"{key} was {version}, and is {now.get(key, 'not installed')} now"
                for key, version in before.items()
                if now.get(key) != version
            ]
        elif before != now:
            sentences.append(f"{name.replace('_', ' ')} was {before}, and is {now} now")
    return sentences
