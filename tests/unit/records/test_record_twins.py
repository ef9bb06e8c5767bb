"""Which implementation is loaded, how one is forced, and that both have the same face."""

from __future__ import annotations

import inspect
import os
import pydoc
import subprocess
import sys
from typing import Any

import pytest

import kclient.records
from kclient.records import EnvelopeLayout
from kclient.records._implementation import VARIABLE
from tests.unit.records.faces import Face, is_built

NAMES = [
    "Appender",
    "BatchBuilder",
    "ColumnBuilder",
    "ConsumerRecord",
    "EnvelopedBatches",
    "KeyOffsets",
    "LazyDelivery",
    "TopicSlots",
    "fnv1a",
    "gather_batches",
    "made_record",
    "murmur2",
    "parse_records",
    "partition_for_key",
    "surviving_records",
]


def test_the_compiled_one_is_loaded_where_it_was_built() -> None:
    forced = os.environ.get(VARIABLE)
    expected = forced or ("compiled" if is_built() else "interpreted")
    assert expected == kclient.records.IMPLEMENTATION
    assert kclient.records.BatchBuilder.__module__.startswith(f"kclient.records._{expected}")
    if os.environ.get("CI") == "true" and not forced:
        assert expected == "compiled", "the extension was not built"


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, **environment}
    return subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60)


SHOW = "import kclient.records as r; print(r.IMPLEMENTATION, r.BatchBuilder.__module__.split('.')[2])"
HIDE = "import sys; sys.modules['kclient.records._compiled'] = None; "


def test_forcing(face: Face) -> None:
    done = run(SHOW, **{VARIABLE: face.name})
    assert done.stdout.split() == [face.name, f"_{face.name}"], done.stderr


def test_forcing_what_is_not_there_fails_loudly() -> None:
    done = run(HIDE + SHOW, **{VARIABLE: "compiled"})
    assert done.returncode
    assert "ImportError: KCLIENT_RECORDS=compiled, but that implementation cannot be loaded" in done.stderr


def test_forcing_an_unknown_name_fails_loudly() -> None:
    done = run(SHOW, **{VARIABLE: "rust"})
    assert done.returncode
    assert "KCLIENT_RECORDS must be one of compiled, interpreted, not 'rust'" in done.stderr


def test_without_the_extension_the_interpreted_one_serves() -> None:
    done = run(HIDE + SHOW, **{VARIABLE: ""})
    assert done.stdout.split() == ["interpreted", "_interpreted"], done.stderr


@pytest.mark.slow
def test_an_extension_of_another_version_is_told_with_the_remedy() -> None:
    stale = """
import sys
class Stale:
    def find_spec(self, name, path=None, target=None):
        if name == "kclient.records._compiled":
            raise ImportError("cannot import name 'gone' from 'kclient.errors'", name="kclient.errors")
sys.meta_path.insert(0, Stale())
"""
    done = run(stale + SHOW, **{VARIABLE: ""})
    assert done.returncode
    assert "was built for another version of kclient (cannot import name 'gone' from 'kclient.errors')" in done.stderr
    assert "build_ext --inplace" in done.stderr


def test_heavy_packages_are_imported_on_use() -> None:
    done = run("import sys, kclient.records; print('pyarrow' in sys.modules, 'numpy' in sys.modules)")
    assert done.stdout.split() == ["False", "False"], done.stderr


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


def public(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


@pytest.mark.parametrize("name", NAMES)
def test_same_names_parameters_and_docstrings(twins: list[Face], name: str) -> None:
    interpreted, compiled = (getattr(face.module, name) for face in twins)
    assert inspect.getdoc(compiled) == inspect.getdoc(interpreted)
    if not isinstance(interpreted, type):
        assert parameters(compiled) == parameters(interpreted)
        return
    assert public(compiled) == public(interpreted)
    for member in public(interpreted):
        ours, theirs = getattr(interpreted, member), getattr(compiled, member)
        if inspect.isfunction(ours):
            assert inspect.getdoc(theirs) == inspect.getdoc(ours)
            assert parameters(theirs) == parameters(ours), member


PUBLIC = sorted(set(NAMES) & set(kclient.records.__all__))


@pytest.mark.parametrize("name", PUBLIC)
def test_same_signatures_with_their_types(twins: list[Face], name: str) -> None:
    interpreted, compiled = (getattr(face.module, name) for face in twins)
    assert inspect.signature(compiled) == inspect.signature(interpreted)
    if not isinstance(interpreted, type):
        return
    for member in public(interpreted):
        ours, theirs = getattr(interpreted, member), getattr(compiled, member)
        if inspect.isfunction(ours):
            assert inspect.signature(theirs) == inspect.signature(ours), member
    shown = pydoc.render_doc(compiled, renderer=pydoc.plaintext)
    assert f" |  {name}{inspect.signature(compiled)}"[:40] in shown


ARGUMENTS: dict[str, dict[str, Any]] = {
    "Appender": {"handle": None, "ignore_keys": True},
    "BatchBuilder": {
        "limit": 5, "compression": 4, "level": 3, "is_transactional": True, "is_control": True, "delete_horizon": 5,
    },
    "ConsumerRecord": {
        "topic": "t", "partition": 1, "offset": 2, "timestamp": 3, "timestamp_type": 0, "key": b"", "value": b"",
        "headers": [], "leader_epoch": 1, "delivery_count": 2,
    },
    "EnvelopedBatches": {"messages": b"", "first": 0, "layout": EnvelopeLayout(24, 1, 0, 4, 8, 12)},
    "KeyOffsets": {"slots": 2},
    "LazyDelivery": {"batch": 1, "index": 2},
    "TopicSlots": {},
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_constructors_take_what_their_signature_says(face: Face, name: str) -> None:
    """A compiled class shows the signature of its twin, so it is compared with what the class does."""
    cls, arguments = getattr(face, name), ARGUMENTS[name]
    if name == "Appender":
        arguments = {**arguments, "handle": face.LazyDelivery}
    signature = inspect.signature(cls).parameters
    assert list(arguments) == list(signature)
    required = {key: arguments[key] for key, parameter in signature.items() if parameter.default is parameter.empty}
    cls(**arguments)
    cls(**required)
    for missing in required:
        with pytest.raises(TypeError):
            cls(**{key: value for key, value in required.items() if key != missing})
    with pytest.raises(TypeError):
        cls(**arguments, more=1)
    by_position = [parameter.kind is not parameter.KEYWORD_ONLY for parameter in signature.values()]
    if all(by_position):
        cls(*arguments.values())
    else:
        with pytest.raises(TypeError):
            cls(*arguments.values())


def test_signatures_of_subclasses(face: Face) -> None:
    class Plain(face.LazyDelivery):  # type: ignore[misc, name-defined]
        pass

    class Own(face.LazyDelivery):  # type: ignore[misc, name-defined]
        def __init__(self, other: int) -> None:
            super().__init__(None, other)

    assert list(inspect.signature(Plain).parameters) == ["batch", "index"]
    assert list(inspect.signature(Own).parameters) == ["other"]


def test_an_empty_variable_counts_as_unset() -> None:
    done = run(SHOW, **{VARIABLE: ""})
    assert done.stdout.split()[0] == ("compiled" if is_built() else "interpreted"), done.stderr


def test_delivery_handle(face: Face) -> None:
    batch = object()
    handle = face.LazyDelivery(batch, 7)
    assert handle.batch is batch
    assert handle.index == 7

    class Delivery(face.LazyDelivery):  # type: ignore[misc, name-defined]
        __slots__ = ()

        def place(self) -> tuple[Any, int]:
            return self.batch, self.index

    assert Delivery(batch, 9).place() == (batch, 9)
    assert not hasattr(Delivery(batch, 9), "__dict__")
