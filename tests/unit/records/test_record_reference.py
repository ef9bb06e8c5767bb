"""The reference shows everything public."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import kclient.records

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "records.md"


def test_every_public_name_is_in_the_reference() -> None:
    named = set(re.findall(r"\w+", PAGE.read_text()))
    assert set(kclient.records.__all__) <= named


@pytest.mark.parametrize("name", kclient.records.__all__)
def test_everything_public_has_a_docstring(name: str) -> None:
    public = getattr(kclient.records, name)
    if not (inspect.isclass(public) or inspect.isroutine(public)):
        return  # constants and aliases are described where they are declared
    assert inspect.getdoc(public)
