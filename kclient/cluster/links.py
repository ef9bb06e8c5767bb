"""The links of one client: to the brokers by id and channel, and to the bootstrap servers."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from kclient.cluster.connections import Readiness
from kclient.cluster.news import BrokerEvent, tell
from kclient.errors import BrokerConnectionError, KafkaError, NoBrokersAvailableError
from kclient.net.address import Address

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from kclient.cluster.connections import BrokerLink
    from kclient.types import Node


class Links:
    """Makes links on first use, and says which of them to ask.

    Args:
        bootstrap: The addresses to start from.
        make: Makes the link to an address.
    """

    def __init__(self, bootstrap: Iterable[Address], make: Callable[[Address], BrokerLink]) -> None:
        self._make = make
        self._links: dict[tuple[int, str], BrokerLink] = {}
        self._bootstrap = [self._to_bootstrap(address) for address in bootstrap]

    def __iter__(self) -> Iterator[BrokerLink]:
        return iter([*self._links.values(), *self._bootstrap])

    def awaited(self) -> list[tuple[str, BrokerLink]]:
        """Every link whose silence matters, with its channel: of bootstrap servers only while no broker answers."""
        links = [(channel, link) for (_, channel), link in self._links.items()]
        if not any(link.readiness is Readiness.ANSWERING for link in self):
            links += [("", link) for link in self._bootstrap]
        return links

    def to(self, node: Node, channel: str) -> BrokerLink:
        """The link to a broker."""
        found = self._links.get((node.id, channel))
        if found is None:
            address = Address.of_broker(node.host, node.port)
            found = (self._take_bootstrap(address) if not channel else None) or self._make(address)
            self._links[node.id, channel] = found
        return found

    def _take_bootstrap(self, address: Address) -> BrokerLink | None:
        """A bootstrap link that is connected to this address serves as the broker's: one connection less."""
        for index, link in enumerate(self._bootstrap):
            if link.address == address and link.usable is not None:
                self._bootstrap[index] = self._to_bootstrap(address)
                link.bootstrap = False
                return link
        return None

    def _to_bootstrap(self, address: Address) -> BrokerLink:
        link = self._make(address)
        link.bootstrap = True
        return link

    def to_ask(self, nodes: Collection[Node], channel: str = "", *, bootstrap: bool) -> list[BrokerLink]:
        """Links to ask something that any broker can answer, the best first.

        The best are those where an answer is likely (see `Readiness`), and of these the least loaded. Whatever a
        broker owes on one channel counts for the others.

        Args:
            nodes: The brokers.
            channel: Whose links to take.
            bootstrap: Whether the bootstrap servers follow.
        """
        links = {node.id: self.to(node, channel) for node in nodes}
        worst: dict[int, Readiness] = {}
        for (node_id, _), link in self._links.items():
            worst[node_id] = max(worst.get(node_id, link.readiness), link.readiness)
        order = random.sample(list(links), len(links))
        order.sort(key=lambda node_id: (worst[node_id], links[node_id].in_flight))
        found = [links[node_id] for node_id in order]
        if bootstrap:
            known = {link.address for link in found}
            found += sorted(
                (link for link in self._bootstrap if link.address not in known), key=lambda link: link.readiness
            )
        return found

    def overdue(self) -> bool:
        """Whether a broker has owed an answer for long: it may have left, and nobody has noticed here."""
        return sum(link.overdue for link in self) > 0  # each is looked at

    def drop_moved(self, nodes: Mapping[int, Node]) -> list[tuple[BrokerLink, BrokerConnectionError]]:
        """Forget the links to brokers that left or moved to another address; they are to be closed, for this reason."""
        moved = []
        for (node_id, channel), link in list(self._links.items()):
            node = nodes.get(node_id)
            if node is None or Address.of_broker(node.host, node.port) != link.address:
                del self._links[node_id, channel]
                what = "left the cluster" if node is None else f"moved to {node.host}:{node.port}"
                moved.append((link, BrokerConnectionError(f"Broker {node_id} at {link.address} {what}")))
        return moved

    def take_all(self) -> list[BrokerLink]:
        """All links, to be closed; none is left."""
        links = list(self)
        self._links, self._bootstrap = {}, []
        return links


def nobody_answered(failures: Iterable[tuple[BrokerLink, KafkaError]]) -> KafkaError:
    """No broker answered: the addresses that were tried, with the cause underneath if it names the address again.

    Bootstrap servers that cannot be reached are told of now: one that is dead is no news while another one answers.
    """
    attempts: list[tuple[str, BaseException]] = []
    for link, error in failures:
        if link.bootstrap and link.readiness is Readiness.FAILED:
            tell(link.address, BrokerEvent.UNREACHABLE, link.link.error or error, bootstrap=True)
        attempts += getattr(error, "attempts", None) or [(str(link.address), error)]
    return NoBrokersAvailableError("No broker could be reached", attempts=attempts)
