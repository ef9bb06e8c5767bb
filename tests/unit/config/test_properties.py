"""Java's properties format."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.config import parse_properties
from kclient.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("# comment\n! another\n\n   \n", {}),
        ("a=1", {"a": "1"}),
        ("a = 1", {"a": "1"}),
        ("a:1", {"a": "1"}),
        ("a : 1", {"a": "1"}),
        ("a 1", {"a": "1"}),
        ("a\t1", {"a": "1"}),
        ("  a=1", {"a": "1"}),
        ("a=1 ", {"a": "1 "}),
        ("a==1", {"a": "=1"}),
        ("a = = 1", {"a": "= 1"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("=1", {"": "1"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=one,\\\n    two", {"a": "one,two"}),
        ("a=one\\\n# no comment", {"a": "one# no comment"}),
        ("a=ends\\", {"a": "ends"}),
        ("a=back\\\\\nb=2", {"a": "back\\", "b": "2"}),
        ("a=\\t\\n\\r\\f\\q\\=", {"a": "\t\n\r\fq="}),
        ("a\\ b\\:c=1", {"a b:c": "1"}),
        ("a=\\u00e4\\u20AC", {"a": "ä€"}),
        ("a=\\ud83d\\ude00", {"a": "😀"}),
        ("a=grün", {"a": "grün"}),
        ("# c\\\na=1", {"a": "1"}),
    ],
)
def test_as_java_reads_it(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


@pytest.mark.parametrize("text", ["a=1\nb=\\u00", "\n\\uXYZW=1"])
def test_malformed_escape(text: str) -> None:
    with pytest.raises(ConfigError, match="line 2"):
        parse_properties(text)


def escape(text: str) -> str:
    return "".join(
        f"\\{c}" if c in "\\=:#! " else {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}.get(c, c) for c in text
    )


@given(st.dictionaries(st.text(min_size=1), st.text(), max_size=5))
def test_what_is_escaped_comes_back(settings: dict[str, str]) -> None:
    text = "\n".join(f"{escape(key)}={escape(value)}" for key, value in settings.items())
    assert parse_properties(text) == settings


@given(st.text())
def test_any_text_without_unicode_escapes_is_read(text: str) -> None:
    parse_properties(text.replace("\\u", "\\v"))


def test_what_is_malformed_is_not_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_properties("\nssl.key.password=pa\\usec3t")
    assert "line 2" in str(caught.value)
    assert "sec" not in str(caught.value)


def test_a_line_that_goes_on_and_on_costs_what_its_length_does() -> None:
    began = time.perf_counter()
    (found,) = parse_properties("k=" + "x\\\n  " * 100_000 + "\\\\\\\n\\\\y").values()
    assert time.perf_counter() - began < 1.0
    assert found == "x" * 100_000 + "\\" + "\\y"
