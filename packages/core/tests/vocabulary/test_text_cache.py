"""Computed values of texts are kept up to a length of the texts."""

from __future__ import annotations

from penstock_core.vocabulary.text_cache import TextCache


class Lengths:
    """The length of texts, and the texts that it was computed for."""

    def __init__(self) -> None:
        self.computed: list[str] = []

    def __call__(self, text: str) -> int:
        self.computed.append(text)
        return len(text)


def test_recently_used_texts_are_cached_up_to_a_number_of_characters() -> None:
    lengths = Lengths()
    cache = TextCache(lengths, 100)
    texts = [character * 30 for character in "abc"]
    for text in (*texts, texts[0]):
        assert cache(text) == 30
    assert lengths.computed == texts, "the last one was kept"

    cache("d" * 30)  # too many by 20: those used longest ago go

    lengths.computed.clear()
    for kept in ("d" * 30, texts[0]):
        assert cache(kept) == 30
    assert not lengths.computed
    assert cache(texts[1]) == 30
    assert lengths.computed == [texts[1]]


def test_a_text_longer_than_the_limit_is_cached_alone() -> None:
    lengths = Lengths()
    cache = TextCache(lengths, 100)
    cache("a")
    for _ in range(2):
        cache("b" * 500)
    cache("a")

    assert lengths.computed == ["a", "b" * 500, "a"]


def test_a_cached_result_is_not_computed_again() -> None:
    lengths = Lengths()
    cache = TextCache(lengths, 100)
    cache.keep("abc", 7)

    assert cache("abc") == 7
    assert not lengths.computed
