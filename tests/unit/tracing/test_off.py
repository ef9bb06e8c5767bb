"""While tracing is off, clients consist of the parts that know nothing of it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import kclient.sync
from kclient.consumer.fetch.collector import FetchCollector, InterceptedFetchCollector
from kclient.consumer.group.committer import Committer
from kclient.consumer.polling import Polling
from kclient.consumer.share.collector import ShareCollector
from kclient.consumer.share.polling import SharePolling
from kclient.producer.sending import Sending


@pytest.mark.parametrize("clients", [kclient, kclient.sync], ids=["async", "sync"])
def test_the_parts_are_those_without_tracing(clients: Any) -> None:
    common = {"bootstrap_servers": "memory:none", "group_id": "g"}
    producer = clients.Producer(bootstrap_servers="memory:none")
    assert type(producer._life.sending) is Sending
    assert producer._fast is not None, "the compiled append"
    core = clients.Consumer(**common)._core
    assert (type(core.polling), type(core.collector)) == (Polling, FetchCollector)
    assert type(core.group().committer) is Committer
    intercepted = clients.Consumer(**common, interceptor_classes=[kclient.consumer.ConsumerInterceptor()])
    assert type(intercepted._core.collector) is InterceptedFetchCollector
    share = clients.ShareConsumer(**common)._core
    assert (type(share.polling), type(share.collector)) == (SharePolling, ShareCollector)


def test_nothing_of_opentelemetry_is_imported() -> None:
    program = """
import sys, kclient, kclient.sync, kclient.processing
kclient.sync.Producer(bootstrap_servers="memory:none")
kclient.sync.Consumer(bootstrap_servers="memory:none", group_id="g")
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
