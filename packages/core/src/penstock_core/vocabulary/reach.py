"""The attribute ``cluster_wide``: whether a store exists on all nodes of a cluster or on one, and
how the attribute changes when a store is compared, copied or moved (SEM C5, N1, N5).

In a cluster it is True or False. Without a cluster it is None, or False for a store that once
belonged to one node.
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


def belongs_to_cluster(definition: Definition) -> bool:
    """Whether the store belongs to a cluster, so that ``cluster_wide`` is True or False."""
    return definition.cluster_wide is not None


def leads_out(source: Definition, destination: Definition) -> bool:
    """Whether events would move from a store that every node has to one that a single node has, so
    that they would be less safe there."""
    return is_everywhere(source) and not is_everywhere(destination)


def with_explicit_reach(definition: Definition) -> Definition:
    """Return the definition with ``cluster_wide`` None replaced by False, as in the JSON
    descriptions of channels."""
    return replace(definition, cluster_wide=is_everywhere(definition))


def on_one_node(definition: Definition) -> Definition:
    """Return the definition of a store that exists on one node only."""
    return replace(definition, cluster_wide=False)


def with_open_reach(definition: Definition) -> Definition:
    """Return the definition with ``cluster_wide`` None, so that the receiving realm decides where
    the store exists."""
    return replace(definition, cluster_wide=None)


def check_not_local(name: str, definition: Definition, local_urls: Mapping[str, str]) -> None:
    """Raise ``InvalidArgument`` if the definition asks for a store on one node only, which the
    realm of the whole cluster cannot create. ``local_urls`` are the URLs, by node, at which nodes
    serve their local stores; the error names them."""
    if definition.cluster_wide is False and local_urls:
        where = ", ".join(f"{node} at {url}" for node, url in sorted(local_urls.items()))
        raise InvalidArgument(
            f"{name} cannot be a local store of the realm of the whole cluster: create it at a "
            f"node that serves local channels ({where}), or leave cluster_wide out"
        )


def without_cluster(definition: Definition) -> Definition:
    """Return the definition for a realm without a cluster, where no store is cluster-wide. A store
    that belonged to one node keeps the value False, in case the realm is moved into a cluster
    again."""
    return replace(definition, cluster_wide=None) if definition.cluster_wide else definition


class NewHome(NamedTuple):
    """The destination of a move, which decides where the store exists afterwards."""

    is_cluster: bool
    clusterable: bool
    """Whether stores of this type can be cluster-wide."""


def relocated(definition: Definition, deciding: Definition, destination: NewHome) -> Definition:
    """Return the definition of a store after a move to another realm. ``deciding`` decides whether
    the store may be cluster-wide there: its own definition, or for a schedule that of its
    channel."""
    if not destination.is_cluster:
        cluster_wide = without_cluster(deciding).cluster_wide
    else:
        cluster_wide = destination.clusterable and deciding.cluster_wide is not False
    return replace(definition, cluster_wide=cluster_wide)


def durables_of(
    definition: Definition, durables: Iterable[DurableState]
) -> tuple[DurableState, ...]:
    """Return the durables of an imported store: they exist on the same nodes as the store. The
    readers of a queue are never cluster-wide themselves."""
    cluster_wide = is_everywhere(definition)
    return tuple(
        replace(durable, cluster_wide=cluster_wide and bool(durable.name)) for durable in durables
    )


def comparable(wanted: Definition, existing: Definition) -> Definition:
    """Return the wanted definition so that it can be compared with the existing one. If its
    ``cluster_wide`` is None, or means the same in another form, the result has the value of
    ``existing``."""
    if wanted.cluster_wide is None or is_everywhere(existing) == wanted.cluster_wide:
        return replace(wanted, cluster_wide=existing.cluster_wide)
    return wanted


def portable(definition: Definition, *, clusterable: bool) -> Definition:
    """Return the definition with ``cluster_wide`` only if it is not the default of the type, so
    that a realm without a cluster also accepts it."""
    if definition.cluster_wide == clusterable:
        return replace(definition, cluster_wide=None)
    return definition


def portable_attributes(attributes: DurableAttributes, store: Definition) -> DurableAttributes:
    """Return the attributes of a durable without a ``cluster_wide`` that follows from its store."""
    return replace(attributes, cluster_wide=attributes.cluster_wide and not is_everywhere(store))
