"""The requests of a member whose heartbeats do everything: one at a time is under way, and its answer says what holds.

So does a member of a consumer group (KIP-848, `remote_member`), and one of a share group (KIP-932, `share.member`).
What the answers mean, they say.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from kclient.consumer.group.model import GroupRequest, RequestKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kclient.consumer.group.coordinator_lookup import CoordinatorLookup
    from kclient.consumer.group.errand import Errand
    from kclient.consumer.group.model import MemberSettings
    from kclient.consumer.group.target import AssignmentTarget
    from kclient.consumer.group.timers import RemoteHeartbeats
    from kclient.errors import KafkaError

_SHORTEST_INTERVAL_MS: Final = 100
"""Heartbeats are no more frequent, whatever a broker says."""

ReportT = TypeVar("ReportT")
"""What a heartbeat tells the broker."""


class Beating(ABC, Generic[ReportT]):
    """Half of a member: its requests, and which of its methods takes which answer."""

    settings: MemberSettings
    lookup: CoordinatorLookup
    _leave: Errand[GroupRequest]
    _target: AssignmentTarget
    _heartbeats: RemoteHeartbeats
    _heartbeat: tuple[GroupRequest, ReportT] | None
    """The request under way, and what it tells."""
    _told: ReportT | None
    """What the broker knows; None if nothing is certain."""

    def stalled(self, seconds: float) -> None:
        """The event loop was blocked for this long; named if the membership is lost for it."""
        self._heartbeats.stalled(seconds)

    def refreshed(self, refresh: object) -> None:
        """Nobody waits for fresh metadata."""

    def resolved(self, names: Mapping[bytes, str], now: float) -> None:
        """The names of the topics that `next` asked for, as far as they could be had."""
        self._target.resolved(names, now + self.settings.retry_backoff.seconds(self._target.failures + 1))
        self._settle()

    def awaits(self, request: GroupRequest) -> bool:
        """Whether the request is still of interest; one to leave always is."""
        return request.kind is RequestKind.LEAVE or self._is_heartbeat(request) or self.lookup.is_awaiting(request)

    def _is_heartbeat(self, request: GroupRequest) -> bool:
        return self._heartbeat is not None and self._heartbeat[0] is request

    def _sends(self, request: GroupRequest, report: ReportT, now: float) -> None:
        """A heartbeat is under way."""
        self._heartbeat = request, report
        self._heartbeats.sent(now)

    def received(self, request: GroupRequest, response: Any, now: float) -> None:
        """The answer to a request that `next` gave out."""
        if self.lookup.is_awaiting(request):
            self._not_found(self.lookup.received(request, response, now))
        elif self._is_heartbeat(request):
            assert self._heartbeat is not None
            report = self._heartbeat[1]
            self._heartbeat = None
            if response.error_code:
                self._refused(response.error_code, response.error_message, now)
            else:
                self._heard(report, response)
        elif self._leave.is_for(request):
            self._leave.end()  # whatever the answer: the broker forgets the member soon enough by itself

    def failed(self, request: GroupRequest, error: KafkaError, now: float) -> None:
        """A request could not be sent, or was not answered."""
        if self.lookup.is_awaiting(request):
            self._not_found(self.lookup.failed(request, error, now))
        elif self._leave.is_for(request):
            self._stays_counted()
            self._leave.end()
        elif not self._is_heartbeat(request):
            return
        elif error.retriable or isinstance(error, TimeoutError):
            self._later(now)
            self._lose(f"{request.kind.value} failed: {error}", now)
        else:
            self._unanswerable(error)

    def _unanswered(self) -> None:
        """Whatever the broker made of the heartbeat under way: the next one tells everything."""
        self._heartbeat = self._told = None

    def _later(self, now: float) -> None:
        """A heartbeat came to nothing."""
        self._unanswered()
        self._heartbeats.failed(now)

    def _heard(self, report: ReportT, response: Any) -> None:
        """The broker has answered that all is well."""
        self.lookup.answered(self.lookup.epoch)
        self._heartbeats.answered(max(response.heartbeat_interval_ms, _SHORTEST_INTERVAL_MS) / 1000)
        self._told = report
        self._is_member(response)
        if response.assignment is not None:
            topics = response.assignment.topic_partitions
            self._target.set((bytes(topic.topic_id), number) for topic in topics for number in topic.partitions)
        self._settle()

    # ------------------------------------------------------------------ in what members differ

    @abstractmethod
    def _lose(self, reason: str, now: float) -> None:
        """The coordinator does not answer, or is another one."""

    @abstractmethod
    def _settle(self) -> None:
        """See what is to be done next, for another subscription or for what the broker assigns."""

    @abstractmethod
    def _is_member(self, response: Any) -> None:
        """Take over from the answer who this member is to the broker."""

    @abstractmethod
    def _refused(self, code: int, message: str | None, now: float) -> None:
        """The broker has answered a heartbeat with an error."""

    @abstractmethod
    def _not_found(self, error: KafkaError | None) -> None:
        """The coordinator was looked for; None if it was found."""

    @abstractmethod
    def _unanswerable(self, error: KafkaError) -> None:
        """A heartbeat cannot be sent or answered, however often it is tried."""

    def _stays_counted(self) -> None:
        """A request to leave has failed: the broker may count on this member yet."""
