"""The messages of the contract's tests, under a name that no store need know, and the topics that tests send to."""

from __future__ import annotations

from kclient.htp import Topic
from kclient.htp.contract.messages import OVERHEAD, ContractFraming, message, payloads, split

__all__ = ["FRAMING", "OTHER", "OVERHEAD", "TOPIC", "PlainFraming", "message", "payloads", "split"]


class PlainFraming(ContractFraming):
    name = "tests.plain"


FRAMING = PlainFraming()
TOPIC = Topic("domain", "some/topic")
OTHER = Topic("domain", "other")
