"""What a gateway's configuration takes, and what it says to settings that belong elsewhere."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from kclient.errors import ConfigError
from kclient.gateway.config import BrokerConfig
from kclient.gateway.reference import render

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("name", "instead"), [("listeners", "--listen"), ("advertised.listeners", "--advertise"), ("log.dirs", "--data")]
)
def test_a_setting_that_is_given_elsewhere(name: str, instead: str) -> None:
    with pytest.raises(ConfigError, match=instead):
        BrokerConfig({name: "PLAINTEXT://:9092"})


def test_what_has_no_effect_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "kclient.gateway"):
        BrokerConfig({"num.io.threads": "8"})
    assert "num.io.threads is accepted and has no effect" in caplog.text


def test_the_number_by_its_old_name() -> None:
    assert BrokerConfig({"broker.id": 7}).get_int("node.id") == 7
    assert BrokerConfig({"node.id": 3, "broker.id": 7}).get_int("node.id") == 3
    assert BrokerConfig({"broker.id": -1}).get_int("node.id") == 1


def test_the_reference_is_up_to_date() -> None:
    text = (ROOT / "docs" / "reference" / "gateway.md").read_text("utf-8")
    assert text == render(), "run: python -m kclient.gateway.reference > docs/reference/gateway.md"
