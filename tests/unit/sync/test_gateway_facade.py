"""The blocking gateway has the calls of the asynchronous one, and serves from the portal's thread."""

from pathlib import Path

import pytest

from kclient import Gateway
from kclient.errors import ConfigError, IllegalStateError
from kclient.sync import Admin
from kclient.sync import Gateway as SyncGateway
from tests.unit.sync.calls import public

IN_LOOP_ONLY = {"aclose", "connect_stream", "abandon"}
"""What belongs to an event loop: another name for `close`, and the seams of the gateway inside the process."""


def test_the_same_calls_with_the_same_arguments() -> None:
    blocking, asynchronous = public(SyncGateway), public(Gateway)
    assert blocking.keys() == asynchronous.keys() - IN_LOOP_ONLY
    for name, signature in blocking.items():
        assert asynchronous[name].parameters == signature.parameters, name


@pytest.mark.slow
def test_it_serves_and_closes(tmp_path: Path) -> None:
    gateway = SyncGateway(f"embedded:{tmp_path}", "127.0.0.1:0")
    with gateway:
        with Admin(bootstrap_servers=gateway.bootstrap) as admin:
            admin.create_topic("t", partitions=3)
            assert [listing.name for listing in admin.list_topics()] == ["t"]
        assert gateway.failure is None
    gateway.close()
    gateway.wait()
    with SyncGateway(f"embedded:{tmp_path}", "127.0.0.1:0") as again, pytest.raises(IllegalStateError):
        again.start()


def test_a_start_that_is_interrupted_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = SyncGateway("memory:interrupted", None)
    start = gateway.start

    def interrupted() -> None:
        start()
        raise KeyboardInterrupt

    monkeypatch.setattr(gateway, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), gateway:
        pass
    gateway.wait()


def test_what_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ConfigError):
        SyncGateway("memory:x", config={"no.such.setting": 1})
