"""Rules that the code does not keep everywhere yet: nothing new may break them.

No class name means two things in the package; no module of a few lines has a single user; no
docstring begins with words that need its neighbour to be understood.
"""

from __future__ import annotations

from tests.tidy.exceptions import LIST, Exceptions, count_violations, listed, written


def test_nothing_new_breaks_a_rule_and_what_is_mended_leaves_the_list() -> None:
    allowed, counted = listed(LIST.read_text(encoding="utf-8")), count_violations()

    assert written(counted - allowed) == "", (
        "new: a class name that the package has already, a short module with a single user that "
        "belongs into it, or a docstring that begins with 'The same' or 'Of'"
    )
    assert written(allowed - counted) == "", "mended: run python -m tests.tidy.exceptions"


def test_the_list_is_as_it_would_be_written() -> None:
    text = LIST.read_text(encoding="utf-8")

    assert written(listed(text)) == text, "run python -m tests.tidy.exceptions"


def test_a_list_is_read_as_it_was_written() -> None:
    exceptions = Exceptions({("class", "Place"): 4, ("docstring", "Of two words"): 1})

    assert written(exceptions) == "class 4 Place\ndocstring 1 Of two words\n"
    assert listed(written(exceptions)) == exceptions
    assert listed("class 4 Place\nclass 3 Place\n") == Exceptions({("class", "Place"): 3})
