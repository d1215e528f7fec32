"""Quotas of a connection or of an HTTP client: requests a second, and bytes in flight."""

from __future__ import annotations

from msgspec import Struct

from penstock_core.vocabulary.errors import LimitReached
from penstock_core.vocabulary.ports import Clock


class ConnectionLimits(Struct, frozen=True):
    """The limits of one connection; 0 means no limit."""

    requests_per_s_max: int = 0
    in_flight_bytes_max: int = 0
    subscriptions_max: int = 0

    @property
    def are_set(self) -> bool:
        """Whether each request has to be counted."""
        return bool(self.requests_per_s_max or self.in_flight_bytes_max)

    def check_subscriptions(self, open_count: int, client: str = "this connection") -> None:
        """Raise ``LimitReached`` if one more subscription than ``open_count`` exceeds the limit."""
        if self.subscriptions_max and open_count >= self.subscriptions_max:
            raise LimitReached(
                f"the limit of subscriptions of {client} is reached: {open_count} are open, "
                f"allowed are {self.subscriptions_max} "
                "(limits.subscriptions_per_connection_max): end one, or use another connection"
            )


class _Bucket:
    """A token bucket with room for the requests of one second: it allows short bursts above the
    rate, but not a lasting higher rate."""

    def __init__(self, per_s: int) -> None:
        self._per_s = per_s
        self._filled_us = 0
        self.tokens = float(per_s)

    def fill(self, now_us: int) -> None:
        """Add the tokens for the time since the last call; add none if the clock was set back."""
        # The first call adds nothing: the bucket is full at the start.
        passed_us = max(0, now_us - self._filled_us) if self._filled_us else 0
        self.tokens = min(float(self._per_s), self.tokens + passed_us * self._per_s / 1_000_000)
        self._filled_us = now_us


class RequestRate:
    """A limit on requests a second. Requests above the limit are refused."""

    def __init__(self, per_s: int, client: str = "one connection") -> None:
        self._client = client
        self._per_s = per_s
        self._bucket = _Bucket(per_s)

    def take(self, now_us: int) -> None:
        """Count a request. Above the limit, raise ``LimitReached`` without counting the request."""
        self._bucket.fill(now_us)
        if self._bucket.tokens < 1.0:
            raise LimitReached(
                f"more than {self._per_s} requests a second of {self._client} "
                "(limits.requests_per_s_max); send fewer requests, or ask for more with each one"
            )
        self._bucket.tokens -= 1.0


class RequestPace:
    """A rate limit that slows clients down instead of refusing: all events are counted, and while
    the bucket is overdrawn the front end reads nothing more from the client."""

    def __init__(self, per_s: int, clock: Clock) -> None:
        """Create a pace of ``per_s`` events; 0 means no limit."""
        self.per_s = per_s
        self._clock = clock
        self._bucket = _Bucket(per_s)

    def count(self, count: int) -> None:
        """Count received events."""
        if self.per_s:
            self._bucket.fill(self._clock.now_us())
            self._bucket.tokens -= count

    @property
    def is_ahead(self) -> bool:
        """Whether the client is above its rate and has to wait."""
        if not self.per_s:
            return False
        self._bucket.fill(self._clock.now_us())
        return self._bucket.tokens < 1.0


class Quota:
    """The quota of one connection, or of the client that ``client`` names."""

    def __init__(self, limits: ConnectionLimits, client: str = "one connection") -> None:
        self._client = client
        per_s = limits.requests_per_s_max
        self._rate = RequestRate(per_s, client) if per_s else None
        self._bytes_max = limits.in_flight_bytes_max
        self._sizes: dict[int, list[int]] = {}
        """Bytes of the unanswered requests, by number. The value is a list, because a client may
        use a number again before the answer, and each request gets an answer."""
        self._bytes = 0
        """Bytes of all unanswered requests."""

    def begin_request(self, request: int, size: int, now_us: int) -> None:
        """Count a request with ``size`` bytes of events. Raises ``LimitReached``; the request is
        then recorded with 0 bytes, because the refusal is an answer for :meth:`end_request`,
        too."""
        try:
            self.count_request(now_us)
            self._check(size)
        except LimitReached:
            self._note(request, 0)
            raise
        self._note(request, size)
        self._bytes += size

    def count_request(self, now_us: int) -> None:
        """Count a request. Raises ``LimitReached``."""
        if self._rate is not None:
            self._rate.take(now_us)

    def add_bytes(self, request: int, size: int) -> None:
        """Count the ``size`` bytes of a request's events. Raises ``LimitReached``."""
        self._check(size)
        self._note(request, size)
        self._bytes += size

    def end_request(self, request: int) -> None:
        """Release the bytes of a request that was answered."""
        sizes = self._sizes.get(request)
        if sizes is not None:
            self._bytes -= sizes.pop()
            if not sizes:
                del self._sizes[request]

    def _note(self, request: int, size: int) -> None:
        """Record the bytes of a request until its answer."""
        # Most requests have no events and need no entry. A request number that is already in use
        # needs one even without events, because each answer takes one size off its list.
        if size or request in self._sizes:
            self._sizes.setdefault(request, []).append(size)

    def _check(self, size: int) -> None:
        # A request may exceed the limit if no other waits, because it could never be sent
        # otherwise.
        is_another = bool(size and self._bytes)
        if self._bytes_max and is_another and self._bytes + size > self._bytes_max:
            raise LimitReached(
                f"requests of {self._client} with {self._bytes} bytes are not answered yet, and "
                f"{size} bytes more were sent; the limit is {self._bytes_max} "
                "(limits.in_flight_bytes_max): wait for answers"
            )
