"""`kclient groups list` and `transactions list` where one broker hangs: the others' are shown, and it is named."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from kclient.cli.app import run
from kclient.sync import Admin
from tests.coordinated import names_at
from tests.gateway_process import GatewayProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

OFFSETS = "__consumer_offsets"


def test_one_gateway_hangs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gateways = [GatewayProcess(tmp_path / "data", config={"node.id": str(number)}) for number in (1, 2)]
    try:
        for each in gateways:
            each.start()
        bootstrap = ",".join(each.bootstrap for each in gateways)
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topic("t")
            groups = [names_at(admin, OFFSETS, number, 1)[0] for number in (1, 2)]
            for group in groups:
                admin.alter_group_offsets(group, {("t", 0): 0})
            assert [listed.group_id for listed in admin.list_groups().complete()] == sorted(groups)
        short = ["--bootstrap", bootstrap, "--config", "default.api.timeout.ms=4000"]
        os.killpg(gateways[1].pid, signal.SIGSTOP)
        try:
            assert run(["groups", "list", *short]) == 1
            shown = capsys.readouterr()
            assert groups[0] in shown.out
            assert groups[1] not in shown.out
            assert "broker 2 has not answered, and what it has is not shown" in shown.err
            assert run(["transactions", "list", "--output", "json", *short]) == 1
            shown = capsys.readouterr()
            assert json.loads(shown.out) == {"transactions": []}
            assert "broker 2 has not answered" in shown.err
        finally:
            os.killpg(gateways[1].pid, signal.SIGCONT)
    finally:
        for each in gateways:
            each.stop()
