"""Measurements of an owner's appends: their duration, and the outcome of appends without an
answer."""

from __future__ import annotations

import pytest

from penstock_cluster.storage.engine_appends import EngineAppends
from penstock_core.vocabulary.errors import Deposed, StorageFailed, Unknown


class Clock:
    now_us = 1_000

    def __call__(self) -> int:
        return self.now_us


def test_an_append_waits_from_its_beginning_to_its_end() -> None:
    clock = Clock()
    appends = EngineAppends(clock)
    assert appends.waiting_us == 0

    with appends.under_way():
        assert appends.waiting_us == 1, "it waits from the first moment on"
        clock.now_us += 700
        assert appends.waiting_us == 700

    assert appends.waiting_us == 0
    assert (sum(appends.timings.counts), appends.timings.total_us) == (1, 700)
    assert sum(appends.ambiguous.values()) == 0, "it was answered"


@pytest.mark.parametrize(
    ("end", "became"),
    [
        (None, "stored"),
        (Deposed("another owner"), "deposed"),
        (ExceptionGroup("of its frames", [Deposed("another owner")]), "deposed"),
        (StorageFailed("the disk is full"), "refused"),
        (Unknown("closed meanwhile"), "unknown"),
    ],
)
def test_an_append_without_an_answer_is_counted_by_what_became_of_it(
    end: Exception | None, became: str
) -> None:
    appends = EngineAppends(Clock())

    def append() -> None:
        with appends.under_way():
            appends.record_missing_answer()
            appends.record_missing_answer()
            if end is not None:
                raise end

    if end is None:
        append()
    else:
        with pytest.raises(type(end)) as raised:
            append()
        assert raised.value is end

    assert {what: count for what, count in appends.ambiguous.items() if count} == {became: 1}
    with appends.under_way():
        pass
    assert sum(appends.ambiguous.values()) == 1, "the next one was answered"
