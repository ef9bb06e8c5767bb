"""The page of served APIs, and that each API of Kafka's is served or has its reason."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from kclient.protocol.registry import ApiKey

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "docs" / "generate" / "served_apis.py"


@pytest.fixture(scope="module")
def table() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def test_the_reference_is_up_to_date(table: dict[str, Any]) -> None:
    text = (ROOT / "docs" / "reference" / "served-apis.md").read_text("utf-8")
    assert text == table["render"](), f"run: python {SCRIPT} > docs/reference/served-apis.md"


def test_every_api_is_served_or_has_its_reason(table: dict[str, Any]) -> None:
    served, left_out = table["served"]().keys(), table["LEFT_OUT"].keys()
    of_logins = {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}  # which the listeners' own handler serves
    assert not served & left_out
    assert served | left_out | of_logins == set(ApiKey)
    assert table["SOMETIMES"].keys() <= served | of_logins
    assert table["OTHER_VERSIONS"].keys() <= served
