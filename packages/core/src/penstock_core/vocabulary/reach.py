"""Whether a store exists on one node or on all nodes of a cluster, and what becomes of that where
it is compared, copied or moved (SEM C5, N1, N5).

A definition says True or False in a cluster. On a realm alone it says None, or False for a store
that once belonged to one node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.durable_attributes import DurableAttributes, DurableState
from penstock_core.vocabulary.errors import InvalidArgument


def is_everywhere(definition: Definition) -> bool:
    """Whether every node has the store."""
    return definition.cluster_wide is True


def tells_of_nodes(definition: Definition) -> bool:
    """Whether the store is one of a cluster: only there it is known where a store exists."""
    return definition.cluster_wide is not None


def leads_out(source: Definition, destination: Definition) -> bool:
    """Whether events would leave what every node keeps, for what one of them does."""
    return is_everywhere(source) and not is_everywhere(destination)


def decided(definition: Definition) -> Definition:
    """The definition with yes or no, as documents show it."""
    return replace(definition, cluster_wide=is_everywhere(definition))


def on_one_node(definition: Definition) -> Definition:
    """The definition of a store that other nodes do not see."""
    return replace(definition, cluster_wide=False)


def undecided(definition: Definition) -> Definition:
    """The definition of a store for which the realm that takes it decides where it exists."""
    return replace(definition, cluster_wide=None)


def check_for_all(name: str, definition: Definition, doors: Mapping[str, str]) -> None:
    """Check that the store ``name`` is not asked for on one node alone; ``doors`` are the URLs by
    node at which nodes have stores of their own. Raises ``InvalidArgument``, which names them."""
    if definition.cluster_wide is False and doors:
        where = ", ".join(f"{node} at {url}" for node, url in sorted(doors.items()))
        raise InvalidArgument(
            f"{name} is not to be cluster-wide, and this is the realm of the whole cluster: "
            f"make it where a node has its own channels ({where}), or leave cluster_wide out"
        )


def without_cluster(definition: Definition) -> Definition:
    """The definition on a realm alone, where nothing is cluster-wide. A store that belonged to one
    node stays one that would, in case that the realm is moved into a cluster again."""
    return replace(definition, cluster_wide=None) if definition.cluster_wide else definition


class NewHome(NamedTuple):
    """What decides where a store exists after a move."""

    is_cluster: bool
    clusterable: bool
    """Whether the type of the store can be cluster-wide."""


def relocated(definition: Definition, deciding: Definition, to: NewHome) -> Definition:
    """The definition of a store at another realm. ``deciding`` is its own, or that of the store
    whose schedule it is."""
    if not to.is_cluster:
        wide = without_cluster(deciding).cluster_wide
    else:
        wide = to.clusterable and deciding.cluster_wide is not False
    return replace(definition, cluster_wide=wide)


def durables_of(
    definition: Definition, durables: Iterable[DurableState]
) -> tuple[DurableState, ...]:
    """The durables of a store that has come from elsewhere: they exist where the store does, and
    the readers of a queue have no place of their own."""
    wide = is_everywhere(definition)
    return tuple(replace(each, cluster_wide=wide and bool(each.name)) for each in durables)


def comparable(wanted: Definition, found: Definition) -> Definition:
    """``wanted`` in the form of ``found``: where nothing is said of nodes, or the same in another
    form, it is as it is there."""
    if wanted.cluster_wide is None or is_everywhere(found) == wanted.cluster_wide:
        return replace(wanted, cluster_wide=found.cluster_wide)
    return wanted


def portable(definition: Definition, *, clusterable: bool) -> Definition:
    """The definition with a word about nodes only where it is not the usual one for the type, so
    that a realm without a cluster takes it, too."""
    if definition.cluster_wide == clusterable:
        return replace(definition, cluster_wide=None)
    return definition


def portable_attributes(attributes: DurableAttributes, store: Definition) -> DurableAttributes:
    """The attributes of a durable of a store, which say nothing that follows from the store."""
    return replace(attributes, cluster_wide=attributes.cluster_wide and not is_everywhere(store))
