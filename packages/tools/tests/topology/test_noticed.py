"""What is tried of realms as files has teeth: a mistake in a plan, a step or a file is noticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from packages.tools.tests.topology.converging import changes, check_convergence
from penstock_core.api.durables import DurableInfo
from penstock_core.vocabulary.definitions import Definition
from penstock_tools.topology import applying, inventory, planning
from penstock_tools.topology.document import Topology, WantedDurable, WantedStore

Mistake = Callable[[pytest.MonkeyPatch], None]


def unseen_storage(patch: pytest.MonkeyPatch) -> None:
    """A plan does not compare how a store is kept."""
    definition_changes = planning.definition_changes

    def without(existing: Definition, wanted: Definition) -> Iterator[planning.Change]:
        return (
            change
            for change in definition_changes(existing, wanted)
            if not change[0].startswith("storage.")
        )

    patch.setattr(planning, "definition_changes", without)


def forgotten_backoff(patch: pytest.MonkeyPatch) -> None:
    """A step makes a durable without the time to breathe that its file gives it."""
    durable_arguments = applying.durable_arguments

    def given_of_durable(durable: WantedDurable) -> dict[str, Any]:
        return {**durable_arguments(durable), "backoff": None}

    patch.setattr(applying, "durable_arguments", given_of_durable)


def unwritten_selector(patch: pytest.MonkeyPatch) -> None:
    """A file that is written of a realm leaves out what durables choose."""
    wanted_durable = inventory.wanted_durable

    def durable(info: DurableInfo, definition: Definition) -> WantedDurable:
        durable_ = wanted_durable(info, definition)
        return WantedDurable(
            name=durable_.name,
            type=durable_.type,
            persistent=durable_.persistent,
            attributes=durable_.attributes,
        )

    patch.setattr(inventory, "wanted_durable", durable)


def stores_for_ever(patch: pytest.MonkeyPatch) -> None:
    """A step makes a store without the time to live that its file gives it."""
    store_arguments = applying.store_arguments

    def given_of_store(store: WantedStore) -> dict[str, Any]:
        return {**store_arguments(store), "ttl": 0}

    patch.setattr(applying, "store_arguments", given_of_store)


MISTAKES: list[Mistake] = [
    unseen_storage,
    forgotten_backoff,
    unwritten_selector,
    stores_for_ever,
]


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_mistake_is_noticed(mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake(monkeypatch)

    with pytest.raises(AssertionError):
        _some_realms()


@given(files=changes())
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def _some_realms(files: tuple[Topology, Topology]) -> None:
    check_convergence(files)
