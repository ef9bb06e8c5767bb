"""A member of a share group (KIP-932), as a state machine free of I/O and clocks.

One request, ShareGroupHeartbeat, joins, stays and leaves, tells what is subscribed, and brings what is to be read. As
several members read one partition, nothing has to be given up before others may read it: what the broker assigns counts
at once.
"""

from __future__ import annotations

import logging
from math import inf
from typing import TYPE_CHECKING, Any

from kclient.consumer.group.beating import Beating
from kclient.consumer.group.coordinator_lookup import COORDINATOR_GONE, CoordinatorLookup
from kclient.consumer.group.errand import Errand
from kclient.consumer.group.model import GroupRequest, MemberSettings, RequestKind, Todo
from kclient.consumer.group.remote_member import new_id
from kclient.consumer.group.remote_requests import JOINS, LEAVES
from kclient.consumer.group.target import AssignmentTarget
from kclient.consumer.group.timers import PollTimer, RemoteHeartbeats
from kclient.consumer.share.refusals import max_poll_exceeded, not_served, share_refused
from kclient.consumer.share.states import SHARE_TABLE, ShareEvent, ShareState
from kclient.errors import ClosedError, ErrorCode, KafkaError, UnsupportedVersionError, error_for
from kclient.protocol.messages import ShareGroupHeartbeatRequest
from kclient.state_tables import next_state

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kclient.types import TopicPartition

logger: logging.Logger = logging.getLogger("kclient.consumer.share")

_MEMBERSHIP_GONE = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})
_ABSENT = frozenset({ShareState.UNJOINED, ShareState.FAILED})


class ShareMember(Beating[frozenset[str]]):
    """One consumer's membership in a share group.

    Args:
        settings: The configuration.
        member_id: Who it is, for as long as the consumer lives; by default a new one.
    """

    def __init__(self, settings: MemberSettings, member_id: str | None = None) -> None:
        self.settings: MemberSettings = settings
        self.state: ShareState = ShareState.UNJOINED
        self.member_id: str = member_id or new_id()
        self.epoch: int = JOINS
        """Of the membership, as the broker counts; 0 without one."""
        self.error: KafkaError | None = None
        """Why the group refused this member, or topics; the next poll raises it."""
        self.topics: frozenset[str] = frozenset()
        """What the user subscribed to."""
        self.assigned: dict[TopicPartition, bytes] = {}
        """What is to be read, with the topics' ids."""
        self.rebalances: int = 0
        """How many times the broker assigned something else."""
        self.lookup: CoordinatorLookup = CoordinatorLookup(settings)
        self._target = AssignmentTarget()
        self._told: frozenset[str] | None = None
        """The subscription that the broker knows."""
        self._heartbeat: tuple[GroupRequest, frozenset[str]] | None = None
        self._heartbeats = RemoteHeartbeats(settings.retry_backoff)
        self._leave: Errand[GroupRequest] = Errand()
        self._polls = PollTimer(settings.max_poll_interval)

    @property
    def group_topics(self) -> set[str]:
        """Topics of other members, whose metadata this one needs: none."""
        return set()

    @property
    def coordinator(self) -> int | None:
        """Node id of the coordinator, while it is known."""
        return self.lookup.node

    # ------------------------------------------------------------------ what the user does

    def subscribe(self, topics: Iterable[str]) -> None:
        """These topics are subscribed from now on; the next poll joins, or the next heartbeat says so."""
        self.topics = frozenset(topics)
        self._settle()

    def polled(self, now: float) -> None:
        """The user polls.

        Raises:
            KafkaError: The group refused this member, or topics; polling again tries again.
        """
        self._polls.polled(now)
        if self.error is not None:
            error, self.error = self.error, None
            if self.state is ShareState.FAILED:
                self._go(ShareEvent.RAISED)
            raise error
        if self.state is ShareState.UNJOINED and self.topics:
            self._go(ShareEvent.POLLED)

    def wait_in_poll(self, begins: bool, now: float) -> None:
        """The user begins to wait inside `poll`, or ends it; `max.poll.interval.ms` does not count that time."""
        self._polls.waits(begins, now)

    @property
    def outside(self) -> bool:
        """Whether there is no membership, and none on its way: a poll has to begin one, or to raise why not."""
        return self.state in _ABSENT

    def leave(self, reason: str) -> None:
        """Leave the group for good."""
        self.topics = frozenset()
        self._depart(reason)

    @property
    def leaving(self) -> bool:
        """Whether the request to leave is due or on its way."""
        return self._leave.pending

    def _depart(self, reason: str) -> None:
        if self.coordinator is not None and (self.state is ShareState.STABLE or self._heartbeat is not None):
            logger.debug("share group %s: leaving: %s", self.settings.group_id, reason)
            request = self._plain(LEAVES)
            self._leave.want(self._request(RequestKind.LEAVE, self.coordinator, request))
        self._forget_member()
        if self.state is not ShareState.UNJOINED:
            self.error = None
            self._go(ShareEvent.LEFT)

    def _check_poll_interval(self, now: float) -> None:
        if now < self._poll_deadline:
            return
        error = max_poll_exceeded(self.settings.group_id, self._polls.since(now), self._polls.interval)
        logger.warning("%s", error)
        self._depart("max.poll.interval.ms exceeded")

    @property
    def _poll_deadline(self) -> float:
        return inf if self.outside else self._polls.deadline

    # ------------------------------------------------------------------ requests

    def _plain(self, epoch: int) -> ShareGroupHeartbeatRequest:
        return ShareGroupHeartbeatRequest(group_id=self.settings.group_id, member_id=self.member_id, member_epoch=epoch)

    def _request(self, kind: RequestKind, node: int, message: ShareGroupHeartbeatRequest) -> GroupRequest:
        return GroupRequest(kind, node, ShareGroupHeartbeatRequest, lambda _: message, self.settings.request_timeout)

    # ------------------------------------------------------------------ what the cluster does

    def next(self, now: float) -> Todo:
        """Which requests to send now, and when to ask again unless something happens before."""
        self._check_poll_interval(now)
        requests: list[GroupRequest] = []
        leave = self._leave.give_out()
        if leave is not None:
            requests.append(leave)
        resolve, resolve_at = self._target.unresolved(now)
        wake_at = min(
            self._plan_heartbeat(now, requests),
            inf if self.outside else self.lookup.plan(now, requests),
            self._poll_deadline,
            resolve_at,
        )
        return Todo(requests, wake_at, resolve=resolve)

    def _plan_heartbeat(self, now: float, requests: list[GroupRequest]) -> float:
        if self.outside or self.coordinator is None or self._heartbeat is not None or self._leave.pending:
            return inf  # who comes back has to have left before: it does so under the same id
        due = self._heartbeats.due(changed=self.topics != self._told)
        if now < due:
            return due
        message = self._plain(self.epoch)
        if self._told is None:
            message.rack_id = self.settings.client_rack
        if self.topics != self._told:
            message.subscribed_topic_names = sorted(self.topics)
        request = self._request(RequestKind.SHARE_HEARTBEAT, self.coordinator, message)
        self._sends(request, self.topics, now)
        requests.append(request)
        return inf

    def _not_found(self, error: KafkaError | None) -> None:
        if error is not None and not error.retriable and not self.outside:
            self._fail(error)

    def _lose(self, reason: str, now: float) -> None:
        self.lookup.lose(reason, now)
        self._unanswered()

    def _unanswerable(self, error: KafkaError) -> None:
        unserved = isinstance(error, UnsupportedVersionError)
        self._fail(not_served(self.settings.group_id, error) if unserved else error)

    # ------------------------------------------------------------------ answers to heartbeats

    def _is_member(self, response: Any) -> None:
        if self.state is ShareState.JOINING:
            self._go(ShareEvent.JOINED)
        self.member_id = response.member_id or self.member_id
        self.epoch = response.member_epoch

    def _settle(self) -> None:
        """Read what the broker assigns, as far as it is subscribed and the topics' names are known."""
        aim = self._target.aim(self.assigned, self.topics)
        if aim is None:
            return
        if aim.items() != self.assigned.items():
            self.rebalances += 1
        self.assigned = self._target.reach()

    def _refused(self, code: int, message: str | None, now: float) -> None:
        joining = self.state is ShareState.JOINING
        self._later(now)
        if code in COORDINATOR_GONE:
            self._lose(f"a heartbeat was answered with {ErrorCode(code).name}", now)
        elif code in _MEMBERSHIP_GONE or (code == ErrorCode.GROUP_ID_NOT_FOUND and not joining):
            if not joining:
                self._heartbeats.again()
            logger.warning(
                "share group %s: the broker does not count on this member any more (%s): no heartbeat reached it "
                "within the group's share.session.timeout.ms, or the member was removed; it joins again",
                self.settings.group_id,
                ErrorCode(code).name,
            )
            self._forget_member()
            self._go(ShareEvent.EXPELLED)
        elif code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:  # it stays a member, and goes on when it may
            self.error = share_refused(self.settings.group_id, code, message)
        elif code == ErrorCode.UNSUPPORTED_VERSION:
            self._fail(not_served(self.settings.group_id, error_for(code)))
        elif code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            logger.info("share group %s: the coordinator is loading", self.settings.group_id)
        else:
            self._fail(share_refused(self.settings.group_id, code, message))

    # ------------------------------------------------------------------ ends

    def _forget_member(self) -> None:
        self.epoch = JOINS
        self._heartbeat = self._told = None
        self.assigned = {}
        self._target = AssignmentTarget()

    def _fail(self, error: KafkaError) -> None:
        """The group refuses this member; the next poll raises the error."""
        # that the consumer closes is no trouble of the group
        level = logging.DEBUG if isinstance(error, ClosedError) else logging.WARNING
        logger.log(level, "share group %s: %s", self.settings.group_id, error)
        if self.state is ShareState.FAILED:
            return
        self.error = error
        if self.state is ShareState.STABLE and self.coordinator is not None:
            self._leave.want(self._request(RequestKind.LEAVE, self.coordinator, self._plain(LEAVES)))
        self._forget_member()
        self._go(ShareEvent.REFUSED)

    def _go(self, event: ShareEvent) -> None:
        state = next_state(SHARE_TABLE, self.state, event)
        logger.debug("share group %s: %s: %s -> %s", self.settings.group_id, event.value, self.state.value, state.value)
        self.state = state
