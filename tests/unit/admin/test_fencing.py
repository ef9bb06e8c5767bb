"""Fencing producers: time-outs of calls and of transactions; ids that are hard to print."""

from __future__ import annotations

import math

import pytest

from kclient.admin import ConfigResource, ConfigResourceType, PartialFailureError
from kclient.sync import Admin
from kclient.testing import memory_broker


@pytest.mark.parametrize("timeout", [1000, 1e7, math.inf])
def test_a_call_may_take_longer_than_brokers_let_transactions_take(timeout: float) -> None:
    with memory_broker() as address, Admin(bootstrap_servers=address) as admin:
        assert admin.fence_producers(["id"], timeout=timeout)["id"].producer_epoch == 0
        admin.force_terminate_transaction("id", timeout=timeout)


def test_brokers_may_let_transactions_take_less_than_calls() -> None:
    with memory_broker() as address, Admin(bootstrap_servers=address) as admin:
        broker = ConfigResource(ConfigResourceType.BROKER, "")
        admin.alter_configs({broker: {"transaction.max.timeout.ms": "5000"}})
        assert admin.fence_producers(["id"])["id"].producer_epoch == 0


def test_errors_show_ids_without_what_a_terminal_would_obey() -> None:
    with memory_broker() as address, Admin(bootstrap_servers=address) as admin:
        with pytest.raises(PartialFailureError) as raised:
            admin.describe_transactions(["\x1b[31mred\n", "plain"])
        assert str(raised.value).isprintable()
        assert "'\\x1b[31mred\\n':" in str(raised.value)
        assert "plain:" in str(raised.value)
        assert set(raised.value.failures) == {"\x1b[31mred\n", "plain"}
