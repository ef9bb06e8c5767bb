"""Every call of a topic that somebody holds, and that each is refused once the topic has ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from kclient.errors import KafkaError
from kclient.htp.contract.messages import message
from kclient.htp.contract.sandbox import Sandbox
from kclient.htp.port import CAP_FIND_BY_TIMESTAMP, CAP_NOWAIT, CAP_SEGMENTS, DirectTopic, OpenTopic, TopicSettings

__all__ = ["all_refused"]

_CALLS: Final[dict[str, Callable[[OpenTopic], Awaitable[object]]]] = {
    "send": lambda topic: topic.send([message(100)]),
    "pull": lambda topic: topic.pull(0),
    "status": lambda topic: topic.status(),
    "trim": lambda topic: topic.trim(1),
}
_OF_SEGMENTS: Final[dict[str, Callable[[OpenTopic], Awaitable[object]]]] = {
    "segments": lambda topic: topic.segments(),
    "roll": lambda topic: topic.roll(),
    "configure": lambda topic: topic.configure(TopicSettings()),
}
_DIRECT: Final[dict[str, Callable[[DirectTopic], object]]] = {
    "send_nowait": lambda topic: topic.send_nowait([message(100)]),
    "pull_nowait": lambda topic: topic.pull_nowait(0),
    "status_nowait": lambda topic: topic.status_nowait(),
}


async def all_refused(sandbox: Sandbox, topic: OpenTopic, error: type[KafkaError]) -> None:
    """Assert that every call raises, except closing, which does nothing."""
    capabilities = sandbox.capabilities
    calls = dict(_CALLS)
    if CAP_FIND_BY_TIMESTAMP in capabilities:
        calls["find_by_timestamp"] = lambda topic: topic.find_by_timestamp(0)
    if CAP_SEGMENTS in capabilities:
        calls |= _OF_SEGMENTS
    for name, call in calls.items():
        _refused(name, error, await _caught(call, topic))
    if CAP_NOWAIT in capabilities:
        assert isinstance(topic, DirectTopic)
        for name, direct in _DIRECT.items():
            try:
                direct(topic)
            except KafkaError as raised:
                _refused(name, error, raised)
            else:
                _refused(name, error, None)
    await topic.close()


async def _caught(call: Callable[[OpenTopic], Awaitable[object]], topic: OpenTopic) -> KafkaError | None:
    try:
        await call(topic)
    except KafkaError as raised:
        return raised
    return None


def _refused(name: str, error: type[KafkaError], raised: KafkaError | None) -> None:
    assert isinstance(raised, error), f"{name} raised {raised!r}, not {error.__name__}"
