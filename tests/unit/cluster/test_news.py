"""Who is told what of brokers, and when a broker counts as silent."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from kclient.cluster.news import BrokerEvent, BrokerNews, Silence, anybody_listens, listening, tell

SILENT, BACK = [BrokerEvent.SILENT], [BrokerEvent.BACK]


@dataclass(eq=False)
class Link:
    waiting: float = 0.0
    connected: bool = True


@pytest.mark.parametrize(
    ("patience", "waiting", "told"),
    [(0.0, 4.9, []), (0.0, 5.0, SILENT), (30.0, 34.9, []), (30.0, 35.0, SILENT), (math.inf, 300.0, [])],
)
def test_a_broker_is_silent_when_its_answer_is_late(patience: float, waiting: float, told: list[BrokerEvent]) -> None:
    silence = Silence()
    assert [event for _, event in silence.look([(Link(waiting), patience)])] == told


def test_silence_is_told_once_and_only_an_answer_ends_it() -> None:
    silence, link = Silence(), Link()

    def look(waiting: float, *, connected: bool = True) -> list[BrokerEvent]:
        link.waiting, link.connected = waiting, connected
        return [event for _, event in silence.look([(link, 0.0)])]

    assert look(5) == SILENT
    assert look(6) == []
    assert look(0, connected=False) == []  # the request has timed out, and the connection with it
    assert look(0.1, connected=False) == []  # another attempt
    assert look(5, connected=False) == []
    assert look(0.1) == BACK
    assert look(0.1) == []
    assert look(7) == SILENT


def test_a_link_that_is_gone_is_forgotten() -> None:
    silence = Silence()
    assert silence.look([(Link(9), 0.0)])
    assert silence.look([]) == []
    assert [event for _, event in silence.look([(Link(9), 0.0), (Link(0), 0.0)])] == SILENT


def test_who_listens_hears_of_it_for_the_length_of_the_block() -> None:
    heard: list[BrokerNews] = []
    assert not anybody_listens()
    with listening(heard.append):
        assert anybody_listens()
        tell("a:1", BrokerEvent.BACK)
    tell("a:1", BrokerEvent.SILENT)
    assert heard == [BrokerNews("a:1", BrokerEvent.BACK)]
