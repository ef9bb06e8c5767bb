"""Units that are moved by hand to another gateway: what the generations of gateways say of them, and having it said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kclient.errors import InvalidReplicaAssignmentError, PolicyViolationError, ReassignmentInProgressError
from kclient.gateway.cluster_generations import MOST_MOVED, HandOverUnderWayError, NotMemberError, TooManyMovedError

if TYPE_CHECKING:
    from collections.abc import Container

    from kclient.gateway.cluster_generations import ClusterGenerations
    from kclient.gateway.leadership import Leadership
    from kclient.gateway.ownership import HeldLease
    from kclient.gateway.topics.table import TopicTable
    from kclient.gateway.unit import Unit


class MovesByHand:
    """Moves units.

    Args:
        generations: Say who leads what.
        lease: Under which that is written.
        topics: Tell which units there are.
        leadership: Tells whose a partition is.
    """

    def __init__(
        self, generations: ClusterGenerations, lease: HeldLease, topics: TopicTable, leadership: Leadership
    ) -> None:
        self._generations = generations
        self._lease = lease
        self._topics = topics
        self._leadership = leadership

    def serves(self, node_id: int) -> bool:
        """Whether a gateway is there that units can be moved to."""
        return node_id in self._generations.current.newest.members

    def wanted(self, unit: Unit) -> int | None:
        """The gateway that a unit was moved to by hand, which may not be there; None if it was not."""
        return self._generations.current.newest.moved.get(unit.fingerprint)

    async def move(self, units: Mapping[Unit, int]) -> None:
        """Have some units led by other gateways, from a common moment on.

        Args:
            units: Each with the number of the gateway.

        Raises:
            InvalidReplicaAssignmentError: One of the gateways has ended meanwhile.
            ReassignmentInProgressError: Too many moves are under way, because a gateway hands nothing over.
            PolicyViolationError: More would have been moved by hand than can be.
            HtpError: The store failed.
        """
        wanted = {unit.fingerprint: node_id for unit, node_id in units.items()}
        try:
            await self._generations.move(wanted, self._lease, self._known)
        except NotMemberError as error:
            raise InvalidReplicaAssignmentError(f"the gateway with node.id={error.node_id} serves no more") from None
        except HandOverUnderWayError as error:
            raise ReassignmentInProgressError(
                f"the gateway with node.id={error.node_id} has not handed over yet what was moved away from it: try "
                "again when it has"
            ) from None
        except TooManyMovedError:
            raise PolicyViolationError(
                f"at most {MOST_MOVED} partitions can be moved by hand: move others back first to where they belong "
                "by themselves, or start and end gateways instead"
            ) from None

    def _known(self) -> Container[int]:
        return {
            self._leadership.unit(record, index).fingerprint
            for record in [*self._topics.all(), *self._topics.kafkas_own()]
            for index in range(record.partitions)
        }
