"""Regular expressions of clients: RE2's syntax, and time that grows with the text and not faster."""

from __future__ import annotations

import random
import re
import tracemalloc
from contextlib import suppress
from string import ascii_lowercase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.errors import InvalidRegularExpressionError
from kclient.gateway.patterns import LinearPattern
from tests.re2_cases import MATCHED, WRONG


@pytest.mark.parametrize(("pattern", "text", "matches"), MATCHED)
def test_what_matches(pattern: str, text: str, matches: bool) -> None:
    assert LinearPattern(pattern).matches(text) is matches


@pytest.mark.parametrize("pattern", WRONG)
def test_what_is_no_pattern(pattern: str) -> None:
    with pytest.raises(InvalidRegularExpressionError, match="at character"):
        LinearPattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    ["(x{1000}){1000}", "((){1000}){1000}", "(((a?){100}){100}){100}", "a" * 4097, "(" * 101 + ")" * 101],
)
def test_what_would_take_too_much_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRegularExpressionError):
        LinearPattern(pattern)


def slices(pattern: str, text: str) -> int:
    """How often others have their turn while a text is matched."""
    return sum(1 for _ in LinearPattern(pattern).steps(text))


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["(a|a)*b", "(a+a+)+y", "(.*a){1,60}z", "(a?){500}a{500}", "(a|b|ab)*c"])
def test_no_pattern_takes_longer_than_its_texts_are_long(pattern: str) -> None:
    """Python's `re` takes time that doubles with each character of some of these."""
    few, many = slices(pattern, "a" * 5_000), slices(pattern, "a" * 50_000)
    assert 0 < many <= 10 * few + 20


def test_what_is_remembered_has_a_limit() -> None:
    pattern = LinearPattern("(.*[ab]){1,40}.")
    for number in range(3_000):
        assert pattern.matches("".join(chr(0x4E00 + number + each) for each in range(5)) + "ab")
    assert pattern._known <= 2_001


def nodes() -> st.SearchStrategy[str]:
    """Patterns that mean the same to RE2 and to Python."""
    atoms = st.sampled_from(["a", "b", "c", ".", "[ab]", "[^a]", "[a-c]", "\\.", "^", "$", "\\b", "\\B", "(?:)"])

    def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        groups = inner.map(lambda text: f"(?:{text})")
        repeated = st.tuples(groups, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{2,}", "*?"])).map("".join)
        return st.lists(inner, min_size=1, max_size=3).map("".join) | st.tuples(inner, inner).map("|".join) | repeated

    return st.recursive(atoms, larger, max_leaves=6)


@given(nodes(), st.lists(st.text("abc.", min_size=1, max_size=6), min_size=1, max_size=5))
def test_where_both_read_the_same_it_agrees_with_python(pattern: str, texts: list[str]) -> None:
    ours, theirs = LinearPattern(pattern), re.compile(f"(?:{pattern})\\Z".replace("$", "\\Z"))
    for text in [*texts, *texts]:  # again, by what was remembered
        assert ours.matches(text) is (theirs.match(text) is not None), (pattern, text)


@given(st.text("ab()[]{}|*+?^$\\.-:=!<>PQEpLdwszAbBx123," + ascii_lowercase[:6], max_size=20))
def test_any_text_is_a_pattern_or_is_refused(pattern: str) -> None:
    with suppress(InvalidRegularExpressionError):
        LinearPattern(pattern).matches("ab-1")


@pytest.mark.slow
def test_what_is_remembered_of_texts_takes_no_more_than_the_pattern() -> None:
    pattern, chance = LinearPattern("a?b?" * 150), random.Random(7)
    tracemalloc.start()
    try:
        for _ in range(20):
            pattern.matches("".join(chance.choices("ab", k=100)))
        assert tracemalloc.get_traced_memory()[0] < 600 * pattern.size
    finally:
        tracemalloc.stop()
