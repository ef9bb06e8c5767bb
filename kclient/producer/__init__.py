"""The producer: sends records, in batches, once and in order.

`Producer` is for asyncio and trio; `kclient.sync.Producer` for blocking code.

Who calls whom: a face asks `Sending` to send, and waits where its script says so. `Sending` shows the record to the
`Interceptors` and gives it to the `RecordAppender`, which makes bytes of it and hands it to the compiled `Appender` or,
where there is no open batch with room, to the `Accumulator`; both fill the `BatchBuffer`. In the event loop the
`Dispatcher`'s task asks the `Sender` what to do, which takes batches out by the `BatchDrain`, numbered by the
`ProducerIdState`, and is told what became of each request. Finished batches go to the `DeliveryReports`, which the face
tells the user. With a transactional id the `TransactionManager` says what may leave in which transaction, and the
`TransactionDriver` carries out its calls. `ProducerLifecycle` puts all of them together, and ends them; it is the only
one that knows the others.
`docs/internals/producer.md` has the rest.
"""

from __future__ import annotations

from kclient.producer.delivery import Deliveries as Deliveries
from kclient.producer.delivery import Delivery as Delivery
from kclient.producer.interfaces import DeliveryCallback as DeliveryCallback
from kclient.producer.interfaces import ProducerInterceptor as ProducerInterceptor
from kclient.producer.interfaces import ProducerRecord as ProducerRecord
from kclient.producer.partitioner import Partitioner as Partitioner
from kclient.producer.partitioner import RoundRobinPartitioner as RoundRobinPartitioner
from kclient.producer.producer import Producer as Producer

__all__ = [
    "Deliveries",
    "Delivery",
    "DeliveryCallback",
    "Partitioner",
    "Producer",
    "ProducerInterceptor",
    "ProducerRecord",
    "RoundRobinPartitioner",
]
