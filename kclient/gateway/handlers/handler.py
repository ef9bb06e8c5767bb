"""What a handler of requests is, and what it may return.

The contract of a handler (`Handler`): `begin` is called in arrival order and never awaits. It takes the
request's place (a produce enters the partition's append queue, a join enters the group's state machine) and
returns one of

* the response message, when the answer is ready;
* a generator that does all this in steps, for a request that takes more than about a millisecond: each `yield` is a
  place to pause (see `kclient.net.answers.Work`), and it returns one of the others. The connection's next
  request begins when it has returned; those of other connections come in between;
* a `Finish`: a function without arguments that returns an awaitable of the response (or of None). Only finishes
  overlap; the server sends the replies of a connection in the order of its requests;
* a `Completion` of the response, which costs no task;
* None, when the protocol has no reply (Produce with acks=0).

A `Finish` may be cancelled at any await (the gateway closes) and must leave the state whole. It works in slices
(`kclient.net.fair_queue.Pace`), and one that only reads ends when the client has gone.
It is a function, not a coroutine, so that a request whose connection broke leaves no coroutine unawaited:
return `functools.partial(self._finish, request, context)`.

A handler which raises a `KafkaError` is asked for the answer that says so by `fail`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from kclient.errors import KafkaError
from kclient.gateway.error_codes import Role, put_error
from kclient.protocol.registry import ApiKey, response_class

if TYPE_CHECKING:
    from kclient.concurrency import Completion
    from kclient.gateway.contexts import RequestContext
    from kclient.net.answers import Work
    from kclient.protocol.message import ApiMessage

VersionRange = tuple[int, int]
"""The oldest and the newest version served, both inclusive."""

Finish = Callable[[], "Awaitable[ApiMessage | None]"]
"""The waiting half of a request: called once, its awaitable yields the response."""

Begun: TypeAlias = "ApiMessage | Finish | Completion[Any] | Work | None"
"""What `Handler.begin` returns; see the module's text."""


class Handler:
    """The base of all handlers: answers errors."""

    API: ClassVar[ApiKey]
    VERSIONS: ClassVar[VersionRange]
    """The versions that are served, and therefore advertised."""
    ROLE: ClassVar[Role] = Role.LEADER
    """What clients take the gateway for: the codes of errors depend on it."""
    ONLY_READS: ClassVar[bool] = False
    """Whether nothing is lost if it ends half-way because the client has gone."""

    FEW_AT_ONCE: ClassVar[bool] = False
    """Whether answers that `begin` has at once are never large: then nobody has to look."""

    def begin(self, request: Any, context: RequestContext) -> Begun:
        """Take the request's place; see the module's text for the contract."""
        raise NotImplementedError

    def memory_short(self) -> None:
        """Clients wait for memory: answer what waits with much in its hands, if that does no harm."""

    def drain(self) -> None:
        """The gateway closes: answer at once what waits, with what there is."""

    def fail(self, request: Any, context: RequestContext, error: KafkaError) -> ApiMessage | None:
        """The answer to a request that failed as a whole; None closes the connection.

        The default serves every response with a top-level error code; others override it.
        """
        response: Any = response_class(self.API)()
        if not hasattr(response, "error_code"):
            return None
        put_error(response, error, self.ROLE)
        answer: ApiMessage = response
        return answer
