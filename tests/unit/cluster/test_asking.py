"""One answer of several: failures are passed over, hung ones are not waited for."""

from __future__ import annotations

from collections.abc import Iterable

import anyio
import pytest

from kclient.cluster.asking import first_answer
from kclient.concurrency import Supervisor
from kclient.errors import (
    AuthenticationError,
    BrokerConnectionError,
    CoordinatorLoadInProgressError,
    KafkaError,
    KafkaTimeoutError,
)

pytestmark = pytest.mark.anyio


def nobody(failures: list[tuple[str, KafkaError]]) -> KafkaError:
    return BrokerConnectionError("nobody: " + ", ".join(f"{name} {error}" for name, error in failures))


class Crowd:
    """Candidates by name; what becomes of each is in its name."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.cancelled: list[str] = []
        self.refused = anyio.Event()
        """Set when one has said that it is not ready."""
        self.hanging = 0
        self.two_hang = anyio.Event()

    async def ask(self, name: str) -> str:
        self.asked.append(name)
        await anyio.lowlevel.checkpoint()
        if name.startswith("down"):
            raise KafkaTimeoutError("is down")
        if name.startswith("slow"):
            await self.refused.wait()
            await anyio.sleep(0.01)
        if name.startswith("loading"):
            self.refused.set()
            raise CoordinatorLoadInProgressError
        if name.startswith("refuses"):
            raise AuthenticationError("refuses")
        if name.startswith("bug"):
            raise ZeroDivisionError
        if name.startswith("hung"):
            self.hanging += 1
            if self.hanging == 2:
                self.two_hang.set()
            try:
                await anyio.sleep_forever()
            finally:
                self.cancelled.append(name)
        return name

    async def first(self, names: Iterable[str], patience: float = 60) -> str:
        async with Supervisor("race") as supervisor:
            with anyio.fail_after(20):
                return await first_answer(names, self.ask, patience=patience, nobody=nobody, supervisor=supervisor)


async def test_the_first_that_answers_is_enough() -> None:
    crowd = Crowd()
    assert await crowd.first(["good", "better"]) == "good"
    assert crowd.asked == ["good"]


async def test_those_that_are_down_are_passed_over_at_once() -> None:
    crowd = Crowd()
    assert await crowd.first(["down 1", "down 2", "good"]) == "good"


async def test_a_hung_one_is_left_behind() -> None:
    crowd = Crowd()
    assert await crowd.first(["hung 1", "hung 2", "good", "better"], patience=0.01) == "good"
    assert crowd.asked == ["hung 1", "hung 2", "good"]
    assert sorted(crowd.cancelled) == ["hung 1", "hung 2"]


async def test_where_all_fail_each_is_named() -> None:
    with pytest.raises(BrokerConnectionError, match="nobody: down 1 is down, down 2 is down"):
        await Crowd().first(["down 1", "down 2"])
    with pytest.raises(BrokerConnectionError, match=r"nobody: $"):
        await Crowd().first([])


@pytest.mark.parametrize(
    ("name", "error"),
    [("refuses", AuthenticationError), ("loading", CoordinatorLoadInProgressError), ("bug", ZeroDivisionError)],
)
async def test_what_the_others_would_say_too_is_raised_at_once(name: str, error: type[Exception]) -> None:
    crowd = Crowd()
    with pytest.raises(error):
        await crowd.first(["hung", name, "good"], patience=0.01)
    assert crowd.asked == ["hung", name]
    assert crowd.cancelled == ["hung"]


async def test_one_that_is_not_ready_does_not_speak_for_those_asked_before() -> None:
    crowd = Crowd()
    assert await crowd.first(["slow", "loading", "good"], patience=0.5) == "slow"
    assert crowd.asked == ["slow", "loading"]


async def test_a_cancelled_question_ends_all() -> None:
    crowd = Crowd()
    async with anyio.create_task_group() as group:
        group.start_soon(crowd.first, ["hung 1", "hung 2"], 0.01)
        await crowd.two_hang.wait()
        group.cancel_scope.cancel()
    assert sorted(crowd.cancelled) == ["hung 1", "hung 2"]


async def test_an_owner_that_fails_leaves_nobody_waiting() -> None:
    crowd = Crowd()
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group, Supervisor("race") as supervisor:

            async def use() -> None:
                with pytest.raises(BrokerConnectionError, match="nobody"):
                    await first_answer(["hung"], crowd.ask, patience=60, nobody=nobody, supervisor=supervisor)

            group.start_soon(use)
            await anyio.wait_all_tasks_blocked()
            supervisor.fail(RuntimeError("the owner failed"))
