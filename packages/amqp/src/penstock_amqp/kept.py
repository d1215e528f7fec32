"""References to Proton objects that outlive a call; they are released on the event loop's thread.

A Proton wrapper releases its C object when the wrapper is freed. A wrapper in a reference cycle is
freed by the garbage collector, possibly on a worker thread while the event loop is inside the same
engine, and Proton's reference counts have no lock. So this package holds a wrapper only for the
duration of a call; longer references use :func:`retain`.

A link is released before its session. Proton frees an ended session when its last reference goes,
with all its links, including a link whose last reference is just being released. It would then read
the reference count of the freed link and, if it still finds zero there, free the link twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable
from typing import Any, TypeVar, cast

from cproton_ffi import ffi
from cproton_ffi import lib as pn
from proton import Connection, Link, Session, Transport

from penstock_amqp.outcomes import Pointer

W = TypeVar("W", Connection, Transport, Session, Link)


def retain(wrapper: W) -> W:
    """Return a long-lived stand-in for a Proton object. It has the same attributes as ``wrapper``
    and equals it."""
    return cast("W", wrapper if isinstance(wrapper, _Retained) else _Retained(wrapper))


class _Retained:
    """A stand-in for a Proton object that creates a wrapper for each use."""

    __slots__ = ("__weakref__", "_impl", "_wrap")

    _impl: Pointer
    _wrap: Callable[[Pointer], Any]

    def __init__(self, wrapper: Connection | Transport | Session | Link) -> None:
        object.__setattr__(self, "_impl", wrapper._impl)
        object.__setattr__(self, "_wrap", type(wrapper).wrap)
        pn.pn_incref(self._impl)
        if isinstance(wrapper, Link):
            pn.pn_incref(pn.pn_link_session(self._impl))
            release_with(self, self._impl, _give_back_link)
        else:
            release_with(self, self._impl, pn.pn_decref)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrap(self._impl), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._wrap(self._impl), name, value)

    def __hash__(self) -> int:
        return hash(int(ffi.cast("uintptr_t", self._impl)))

    def __eq__(self, other: object) -> bool:
        return bool(self._impl == getattr(other, "_impl", None))


def _give_back_link(link: Pointer) -> None:
    """Release a link, and then its session, which must exist as long as the link."""
    session = pn.pn_link_session(link)
    pn.pn_decref(link)
    pn.pn_decref(session)


def release_with(owner: object, pointer: Pointer, release: Callable[[Pointer], Any]) -> None:
    """Release ``pointer`` after ``owner`` is freed: between two turns of the event loop, so that no
    call into the engine is active, whichever thread frees the owner."""
    try:
        loop = weakref.ref(asyncio.get_running_loop())  # weak: the loop may own the owner
    except RuntimeError:  # an engine without an event loop is used by one thread only
        loop = None
    weakref.finalize(owner, _release, loop, pointer=pointer, release=release).atexit = False


def _release(
    loop: weakref.ref[asyncio.AbstractEventLoop] | None,
    pointer: Pointer,
    release: Callable[[Pointer], Any],
) -> None:
    running = None if loop is None else loop()
    if running is not None:
        with contextlib.suppress(RuntimeError):  # a closed loop is not inside an engine
            running.call_soon_threadsafe(release, pointer)
            return
    release(pointer)
