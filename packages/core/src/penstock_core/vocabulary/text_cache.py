"""A cache of values computed from texts, which is bounded by the length of the texts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

Text = TypeVar("Text", bound=str | bytes)
T = TypeVar("T")


class TextCache(Generic[Text, T]):
    """A function of a text that keeps its results for the texts used last.

    The texts have at most ``length_max`` characters or bytes together; the newest result is kept in
    any case. Threads may share a cache, because each step on the dictionary is one call. The sum of
    lengths may become wrong, so it is computed again before results are dropped.
    """

    def __init__(self, compute: Callable[[Text], T], length_max: int) -> None:
        self._compute = compute
        self._length_max = length_max
        self._results: OrderedDict[Text, T] = OrderedDict()
        self._length = 0

    def __call__(self, text: Text) -> T:
        result = self._results.get(text)
        if result is None:
            result = self._compute(text)
            self.keep(text, result)
            return result
        with suppress(KeyError):  # another thread may have dropped it
            self._results.move_to_end(text)
        return result

    def __len__(self) -> int:
        return len(self._results)

    def keep(self, text: Text, result: T) -> None:
        """Cache a result that was computed elsewhere."""
        # If another thread has cached the text in the meantime, its length is counted already.
        if self._results.setdefault(text, result) is not result:
            return
        self._length += len(text)
        if self._length <= self._length_max:
            return
        length = sum(map(len, tuple(self._results)))
        # Down to three quarters, so that the next texts fit without another sum.
        while length > self._length_max * 3 // 4 and len(self._results) > 1:
            length -= len(self._results.popitem(last=False)[0])
        self._length = length
