"""The tree of errors and its codes."""

from __future__ import annotations

import re

import pytest

from penstock_core.vocabulary.errors import PenstockError, Refused, Unavailable, error_classes


def test_every_error_has_a_code_of_its_own() -> None:
    def below(root: type[PenstockError]) -> list[type[PenstockError]]:
        return [root, *(leaf for child in root.__subclasses__() for leaf in below(child))]

    classes = [one for one in below(PenstockError) if "code" in vars(one)]

    assert len({one.code for one in classes}) == len(classes)
    assert all(error_classes()[one.code] is one for one in classes)


def test_a_class_that_shares_a_code_is_known_by_its_parent() -> None:
    class Narrower(Refused):
        """An error that has its own class inside a process, and the code of its base class
        outside."""

    assert error_classes()[Narrower.code] is Refused


@pytest.mark.parametrize("error", error_classes().values(), ids=list(error_classes()))
def test_an_error_says_what_it_means_and_its_code_is_words(error: type[PenstockError]) -> None:
    assert error.__doc__
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", error.code)
    assert isinstance(error("why").retryable, bool)


def test_what_is_unavailable_may_be_tried_again_and_what_is_refused_may_not() -> None:
    assert Unavailable.retryable
    assert not Refused.retryable
