"""The results of Celery's tasks and groups, kept on a channel that has the newest event of each
key."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

from celery import states
from celery.backends.base import KeyValueStoreBackend
from celery.exceptions import TimeoutError as ResultTimeout
from kombu.utils.encoding import bytes_to_str
from kombu.utils.url import parse_url

import penstock
from penstock import Channel, Event, PenstockError, Session
from penstock_celery.addresses import realm_url
from penstock_celery.names import Names

R = TypeVar("R")

_KEYS_MAX = 100
"""Largest number of keys that one selector names."""


class RealmBackend(KeyValueStoreBackend):
    """Celery's result backend for ``penstock://`` and ``penstocks://``."""

    key_t = bytes_to_str
    supports_native_join = True
    supports_autoexpire = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._session: Session | None = None
        self._results: Channel | None = None
        self._process_id = 0

    def get(self, key: str) -> bytes | None:
        """Return the value of a key; None if it has none."""
        return self.mget([key])[0]

    def mget(self, keys: Iterable[str]) -> list[bytes | None]:
        """Return the values of keys, in their order."""
        wanted = [*keys]
        values: dict[str, bytes] = {}
        for start in range(0, len(wanted), _KEYS_MAX):
            selector = _selector(wanted[start : start + _KEYS_MAX])
            for event in self._call(partial(_stored, selector=selector)):
                values[event.properties["key"]] = event.data
        return [values.get(key) for key in wanted]

    def set(self, key: str, value: str | bytes) -> None:
        """Set the value of a key. It expires after ``result_expires``."""
        data = value.encode() if isinstance(value, str) else value
        ttl = int(self.expires or 0) * 1_000
        self._call(lambda results: results.publish(data, properties={"key": key}, ttl=ttl))

    def delete(self, key: str) -> None:
        """Remove a key and its value."""
        self._call(lambda results: results.purge(selector=_selector([key])))

    def wait_for(
        self,
        task_id: str,
        timeout: float | None = None,
        interval: float = 0.5,
        no_ack: bool = True,
        on_interval: Callable[[], None] | None = None,
    ) -> dict[str, Any]:
        """Wait until a task has ended, and return its result. The realm sends the result when it
        is stored; ``interval`` only sets how often ``on_interval`` is called.

        Raises Celery's ``TimeoutError`` after ``timeout`` seconds.
        """
        self._ensure_not_eager()
        end_s = float("inf") if timeout is None else perf_counter() + timeout
        selector = _selector([self.get_key_for_task(task_id)])
        return self._call(
            lambda results: self._result(
                results, selector, end_s, interval_s=interval, on_interval=on_interval
            )
        )

    def _result(
        self,
        results: Channel,
        selector: str,
        end_s: float,
        *,
        interval_s: float,
        on_interval: Callable[[], None] | None,
    ) -> dict[str, Any]:
        """Return the result of a task once its state is final. ``end_s`` is the deadline as a time
        of ``perf_counter``."""
        with results.subscribe(start="latest", selector=selector) as events:
            # The stored result is read after the subscription has begun, so that no result is
            # missed in between. The realm finds the stored result by its key, while a subscription
            # from the start would examine the results of all tasks.
            batch: Iterable[Event] = _stored(results, selector)
            while True:
                for event in batch:
                    meta: dict[str, Any] = self.decode_result(event.data)
                    if meta["status"] in states.READY_STATES:
                        return meta
                left_s = end_s - perf_counter()
                if left_s <= 0:
                    raise ResultTimeout("the operation timed out")
                batch = events.next_batch(min(left_s, interval_s)) or ()
                if on_interval is not None:
                    on_interval()

    def exception_safe_to_retry(self, exc: BaseException) -> bool:
        """Return whether an operation that raised ``exc`` may succeed if it is repeated."""
        return isinstance(exc, penstock.Unavailable)

    def __reduce__(self, args: Any = (), kwargs: Any = None) -> Any:
        return super().__reduce__(args, {**(kwargs or {}), "url": self.url})

    def _call(self, operation: Callable[[Channel], R]) -> R:
        """Return the result of an operation on the channel of the results. Each process has a
        separate session, opened at its first operation."""
        if self._results is None or self._process_id != os.getpid():
            self._connect()
        assert self._results is not None, "the session is open"
        try:
            return operation(self._results)
        except penstock.Unavailable:
            self._end_session()  # the next operation connects again
            raise

    def _connect(self) -> None:
        """Open a session, and create the channel of the results unless it exists."""
        parts = parse_url(self.url)
        conf = self.app.conf
        options = {**conf.broker_transport_options, **conf.result_backend_transport_options}
        self._session = penstock.connect(
            realm_url(self.url.partition(":")[0], parts, options), token=options.get("token")
        )
        self._process_id = os.getpid()
        self._results = self._session.channels.create(
            Names(parts.get("virtual_host") or "").results, if_missing=True, keys={"key": 1}
        )

    def _end_session(self) -> None:
        session, self._session, self._results = self._session, None, None
        if session is not None:
            try:
                session.close()
            except PenstockError:
                self._process_id = 0


def _stored(results: Channel, selector: str) -> list[Event]:
    return list(results.browse(selector=selector))


def _selector(keys: Iterable[str]) -> str:
    """Return the selector of the events with one of ``keys``."""
    quoted = ", ".join("'" + key.replace("'", "''") + "'" for key in keys)
    return f"key IN ({quoted})"
