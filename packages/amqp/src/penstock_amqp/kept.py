"""Objects of Proton's that outlive a call: they are given back on the thread of the loop.

A wrapper of Proton's gives its object back as it is freed, in whatever thread that happens: part of
a cycle, it is freed by whoever runs the cyclic garbage collector, and that may be a worker thread,
while the loop is inside of the same engine. Proton counts its references without a lock. So nothing
here has a wrapper for longer than a call; what lasts is a :func:`kept` object.

A link is given back before its session. Proton frees a session that both sides have ended as soon
as nobody has it, with all its links: also with the one whose last reference is being given back
at the moment, of which it was the last. It then looks at the reference count of that link, which is
freed, and frees it a second time if it still finds a zero there.
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


def kept(found: W) -> W:
    """An object of Proton's to keep: it is used as ``found`` is, and equals it."""
    return cast("W", found if isinstance(found, _Kept) else _Kept(found))


class _Kept:
    """Stands for an object of Proton's, and makes a wrapper for each use of it."""

    __slots__ = ("__weakref__", "_impl", "_wrap")

    _impl: Pointer
    _wrap: Callable[[Pointer], Any]

    def __init__(self, found: Connection | Transport | Session | Link) -> None:
        object.__setattr__(self, "_impl", found._impl)
        object.__setattr__(self, "_wrap", type(found).wrap)
        pn.pn_incref(self._impl)
        if isinstance(found, Link):
            pn.pn_incref(pn.pn_link_session(self._impl))
            give_back_with(self, self._impl, _give_back_link)
        else:
            give_back_with(self, self._impl, pn.pn_decref)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrap(self._impl), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._wrap(self._impl), name, value)

    def __hash__(self) -> int:
        return hash(int(ffi.cast("uintptr_t", self._impl)))

    def __eq__(self, other: object) -> bool:
        return bool(self._impl == getattr(other, "_impl", None))


def _give_back_link(link: Pointer) -> None:
    """Its session is there until the link is given back."""
    session = pn.pn_link_session(link)
    pn.pn_decref(link)
    pn.pn_decref(session)


def give_back_with(owner: object, pointer: Pointer, release: Callable[[Pointer], Any]) -> None:
    """Have ``pointer`` released once ``owner`` is gone: between two turns of the loop, so that no
    call into its engine is under way, whichever thread frees the owner."""
    try:
        loop = weakref.ref(asyncio.get_running_loop())  # it may be what has the owner
    except RuntimeError:  # an engine without a loop belongs to its thread
        loop = None
    weakref.finalize(owner, _release, loop, pointer=pointer, release=release).atexit = False


def _release(
    loop: weakref.ref[asyncio.AbstractEventLoop] | None,
    pointer: Pointer,
    release: Callable[[Pointer], Any],
) -> None:
    running = None if loop is None else loop()
    if running is not None:
        with contextlib.suppress(RuntimeError):  # it is closed: nobody is inside of an engine
            running.call_soon_threadsafe(release, pointer)
            return
    release(pointer)
