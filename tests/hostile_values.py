"""Arguments of every wrong kind, as hypothesis strategies: extremes of the right types, wrong types, lying objects."""

from __future__ import annotations

import datetime
import decimal
import fractions
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hypothesis import strategies as st

from kclient.arguments import shown


class OfTheUsers(Exception):
    """What hostile objects raise: an error of the user's own code, which may reach the user as it is."""


def _raise(*_: Any, **__: Any) -> Any:
    raise OfTheUsers


class NoEquality:
    __hash__ = object.__hash__
    __eq__ = _raise


class NoHash:
    __hash__ = _raise


class NoIteration:
    __iter__ = _raise


class HalfAnIteration:
    def __iter__(self) -> Iterator[Any]:
        yield "t"
        raise OfTheUsers


class NegativeLength(list[Any]):
    def __len__(self) -> int:
        return -1


class HugeLength:
    def __len__(self) -> int:
        return 2**62

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class NoText:
    __str__ = __repr__ = _raise


class NoIndex:
    __index__ = __int__ = __float__ = _raise


class HugeIndex:
    def __index__(self) -> int:
        return 2**80


class NoTruth:
    __bool__ = _raise


class NoAttributes:
    __getattr__ = _raise


class OddText(str):
    """A text that is not equal to anything."""

    __slots__ = ()
    __hash__ = str.__hash__
    __eq__ = _raise


class OddNumber(int):
    """A number that cannot be compared."""

    __hash__ = int.__hash__
    __lt__ = __le__ = __gt__ = __ge__ = _raise


class NoItems(dict[Any, Any]):
    items = keys = values = __iter__ = _raise


class LyingMapping(Mapping[Any, Any]):
    """Names keys that it does not have."""

    def __iter__(self) -> Iterator[Any]:
        return iter([("t", 0), "t"])

    def __len__(self) -> int:
        return 2

    def __getitem__(self, key: Any) -> Any:
        raise OfTheUsers


HOSTILE: list[Any] = [
    NoEquality, NoHash, NoIteration, HalfAnIteration, NegativeLength, HugeLength, NoText, NoIndex, HugeIndex, NoTruth,
    NoAttributes, NoItems, LyingMapping, lambda: OddText("t"), lambda: OddNumber(5),
]  # fmt: skip

edges = st.sampled_from(
    [
        at + off
        for at in (0, 2**7, 2**15, 2**16, 2**31, 2**32, 2**62, 2**63, 2**64, 2**80, 10**400)
        for off in (-1, 0, 1)
    ]
    + [-(2**31) - 1, -(2**31), -(2**63) - 1, -(2**63), -(10**400)]
)
floats = st.sampled_from([0.0, -0.0, 0.5, -1.5, 1e308, -1e308, float("nan"), float("inf"), float("-inf"), 5e-324])
texts = st.one_of(
    st.sampled_from(
        ["", " ", "t", "0", "-1", "\x00", "\ud800", "t\udfff", "a/b", "..", "a b", "😀", "t,u", "none", "True"]
    ),
    st.sampled_from(["1e3", "by_duration:PT1H", "latest"]),
    st.sampled_from([32_767, 32_768, 300_000]).map(lambda size: "x" * size),
    st.just(20_000).map(lambda size: "é" * size),
)
octets = st.sampled_from([b"", b"t", b"\x00" * 10, b"\xff\xfe"]) | st.just(300_000).map(bytes)

scalars = st.one_of(
    st.none(),
    st.booleans(),
    edges,
    floats,
    texts,
    octets,
    st.sampled_from(HOSTILE).map(lambda make: make()),
    st.builds(bytearray, octets),
    st.builds(lambda data: memoryview(data), octets),
    st.sampled_from([..., NotImplemented, object, int, type, Exception("x"), print, 1j, range(3), slice(1), Path("t")]),
    st.sampled_from([decimal.Decimal("1.5"), decimal.Decimal("NaN"), fractions.Fraction(1, 3), datetime.timedelta(1)]),
    st.sampled_from([datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), re.compile("t"), re.compile(b"t")]),
)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    items = st.lists(inner, max_size=3)
    hashable = st.one_of(st.none(), st.booleans(), edges, texts, st.tuples(texts, edges))
    return st.one_of(
        items,
        items.map(tuple),
        items.map(iter),
        items.map(lambda values: (value for value in values)),
        items.map(lambda values: zip(values, values, strict=True)),
        items.map(lambda values: map(lambda value: value, values)),  # noqa: C417
        st.sets(hashable, max_size=3),
        st.frozensets(hashable, max_size=3),
        st.dictionaries(hashable, inner, max_size=3),
        st.dictionaries(hashable, inner, max_size=3).map(MappingProxyType),
    )


odd = st.recursive(scalars, _containers, max_leaves=5)
"""Anything."""

numbers = st.one_of(edges, floats, st.booleans(), st.just(OddNumber(3)))
"""Anything that is a number."""


class Shown:
    """A value that hypothesis can show, whatever the value's own repr does."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return shown(self.value)
