"""What a gateway's configuration takes, and what it says to settings that belong elsewhere."""

from __future__ import annotations

import logging
import runpy
from pathlib import Path

import pytest

from kclient.config.setting import Number
from kclient.errors import ConfigError
from kclient.gateway.config import BrokerConfig
from kclient.gateway.setting import GzipLevel
from tests.gateway_wire import batch_of, names, running

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(("name", "instead"), [("log.dirs", "--data")])
def test_a_setting_that_is_given_elsewhere(name: str, instead: str) -> None:
    with pytest.raises(ConfigError, match=instead):
        BrokerConfig({name: "PLAINTEXT://:9092"})


def test_what_has_no_effect_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "kclient.gateway"):
        BrokerConfig({"metric.reporters": "x"}).tell_without_effect()
    assert "without effect on a gateway: metric.reporters (metrics are served" in caplog.text


def test_the_number_by_its_old_name() -> None:
    assert BrokerConfig({"broker.id": 7}).get_int("node.id") == 7
    assert BrokerConfig({"node.id": 3, "broker.id": 7}).get_int("node.id") == 3
    assert BrokerConfig({"broker.id": -1}).get_int("node.id") == 1


MIB = 1 << 20


@pytest.mark.parametrize(
    "given",
    [
        {"socket.request.max.bytes": 4 * MIB + 1, "connections.max.memory.bytes": 16 * MIB},
        {"socket.request.max.bytes": 100 * MIB, "connections.max.memory.bytes": 128 * MIB},
        {"socket.request.max.bytes": 128 * MIB + 1},
    ],
)
def test_a_request_that_no_connection_may_hold_is_refused_at_the_start(given: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"socket\.request\.max\.bytes.*connections\.max\.memory\.bytes"):
        BrokerConfig(given)


def test_the_longest_request_that_one_connection_may_hold() -> None:
    config = BrokerConfig({"socket.request.max.bytes": 4 * MIB, "connections.max.memory.bytes": 16 * MIB})
    assert config.get_int("socket.request.max.bytes") == 4 * MIB
    assert BrokerConfig({"socket.request.max.bytes": 128 * MIB}).get_int("socket.request.max.bytes") == 128 * MIB
    assert BrokerConfig({}).get_int("socket.request.max.bytes") == 100 * MIB


@pytest.mark.anyio
async def test_the_default_of_the_longest_request_follows_the_memory_and_is_shown() -> None:
    async with running(f"memory:{next(names)}", config={"connections.max.memory.bytes": 128 * MIB}) as (gateway, wire):
        assert gateway.parts.config.get_int("socket.request.max.bytes") == 32 * MIB
        assert (await wire.configs(4, "1"))["socket.request.max.bytes"] == (str(32 * MIB), 5)
        assert await wire.alter(4, "", ("log.retention.ms", 0, "5000")) == 0  # which makes out all settings again
        assert (await wire.configs(4, "1"))["socket.request.max.bytes"] == (str(32 * MIB), 5)


def test_the_reference_is_up_to_date() -> None:
    text = (ROOT / "docs" / "reference" / "gateway.md").read_text("utf-8")
    script = ROOT / "docs" / "generate" / "gateway_settings.py"
    assert text == runpy.run_path(str(script))["render"](), f"run: python {script} > docs/reference/gateway.md"


@pytest.mark.anyio
async def test_a_level_that_earlier_versions_took_keeps_no_topic_from_being_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = f"embedded:{tmp_path / 'data'}"
    with monkeypatch.context() as earlier:
        earlier.setattr(GzipLevel, "parse", Number.parse)
        async with running(store) as (_, wire):
            made = await wire.create("t", compression_gzip_level="0", compression_type="gzip")
            assert made.error_code == 0
            assert (await wire.produce("t", batch_of(b"a"))).error_code == 0
    async with running(store) as (_, wire):
        assert await wire.values("t") == [b"a"]
        assert (await wire.produce("t", batch_of(b"b"))).error_code == 0
