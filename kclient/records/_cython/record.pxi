# A fetched record, and the handle of a sent one.

@cython.final
@cython.no_gc  # holds bytes, or what a deserializer made before the record existed: no cycle leads back to it
@cython.freelist(1024)
cdef class ConsumerRecord:
    """A record as it was fetched. Immutable; equal to a record with equal fields.

    Raises:
        TypeError: A field is of a wrong type.
        ValueError: A number is out of its range.
    """

    __signature__ = TwinSignature("ConsumerRecord")

    cdef readonly str topic
    cdef readonly int32_t partition
    cdef readonly int64_t offset
    cdef readonly int64_t timestamp
    cdef readonly object key
    cdef readonly object value
    cdef readonly tuple headers
    cdef int32_t _leader_epoch
    cdef int8_t _timestamp_type
    cdef int16_t _delivery_count

    def __init__(
        self,
        topic,
        partition,
        offset,
        timestamp,
        timestamp_type,
        key,
        value,
        headers=(),
        leader_epoch=None,
        delivery_count=None,
    ):
        (
            self.topic, self.partition, self.offset, self.timestamp, self._timestamp_type, self.headers,
            self._leader_epoch, self._delivery_count,
        ) = check_record(topic, partition, offset, timestamp, timestamp_type, headers, leader_epoch, delivery_count)
        self.key = key
        self.value = value

    @property
    def timestamp_type(self):
        """Who stamped the record."""
        if self._timestamp_type == 0:
            return _CREATE_TIME
        if self._timestamp_type == 1:
            return _LOG_APPEND_TIME
        return TimestampType(self._timestamp_type)

    @property
    def leader_epoch(self):
        """Epoch of the leader that appended the record, if the broker told."""
        return None if self._leader_epoch < 0 else self._leader_epoch

    @property
    def delivery_count(self):
        """How often a share group has delivered the record, this time included; None for any other consumer."""
        return self._delivery_count or None

    cdef tuple _fields(self):
        return (
            self.topic, self.partition, self.offset, self.timestamp, self.timestamp_type,
            self.key, self.value, self.headers, self.leader_epoch, self.delivery_count,
        )

    def __eq__(self, other):
        if not isinstance(other, ConsumerRecord):
            return NotImplemented
        return self._fields() == (<ConsumerRecord>other)._fields()

    def __hash__(self):
        return hash((self.topic, self.partition, self.offset))

    def __repr__(self):
        delivered = f", delivery_count={self._delivery_count}" if self._delivery_count else ""
        return (
            f"ConsumerRecord(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
            f"timestamp={self.timestamp}, timestamp_type={self.timestamp_type.name}, key={self.key!r}, "
            f"value={self.value!r}, headers={self.headers!r}, leader_epoch={self.leader_epoch}{delivered})"
        )

    def __reduce__(self):
        return restore_record, self._fields()


def made_record(
    str topic,
    int32_t partition,
    int64_t offset,
    int64_t timestamp,
    timestamp_type,
    key,
    value,
    tuple headers,
    leader_epoch,
    delivery_count=None,
):
    """A record of fields that are known to be right."""
    cdef ConsumerRecord record = ConsumerRecord.__new__(ConsumerRecord)
    record.topic = topic
    record.partition = partition
    record.offset = offset
    record.timestamp = timestamp
    record._timestamp_type = timestamp_type
    record.key = key
    record.value = value
    record.headers = headers
    record._leader_epoch = -1 if leader_epoch is None else leader_epoch
    record._delivery_count = 0 if delivery_count is None else delivery_count
    return record


def count_deliveries(list records not None, Py_ssize_t start, Py_ssize_t stop, int16_t count):
    """Say of fresh records, which nobody has seen yet, how often they were delivered."""
    cdef ConsumerRecord record
    for record in records[start:stop]:
        record._delivery_count = count


@cython.no_gc  # a batch forgets its callbacks when it is done, so cycles through a handle end by themselves
@cython.freelist(1024)
cdef class LazyDelivery:
    """The handle of a record in a producer's batch: the batch and the record's index in it, nothing else.

    To be subclassed; everything that a handle tells about its record it looks up in the batch when asked.

    Raises:
        TypeError: The index is not an integer.
        ValueError: The index is negative, or beyond 31 bits.
    """

    __signature__ = TwinSignature("LazyDelivery")

    cdef readonly object batch
    cdef readonly int32_t index

    def __init__(self, batch, index):
        self.batch = batch
        self.index = <int32_t>_integer("index", index, 0, INT32_MAX)
