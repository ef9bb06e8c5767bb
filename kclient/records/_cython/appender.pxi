# What the producer does once per record: find the open batch, append, make a handle.

cdef class TopicSlots:
    """The open batch of each partition of a topic, as `Appender` sees them.

    Changed under the appender's lock only.
    """

    __signature__ = TwinSignature("TopicSlots")

    cdef int32_t _partitions
    cdef int32_t _sticky
    cdef list _batches
    cdef list _builders

    def __init__(self):
        self._partitions = 0
        self._sticky = -1
        self._batches = []
        self._builders = []

    @property
    def partitions(self):
        """Number of partitions that keys are spread over."""
        return self._partitions

    @partitions.setter
    def partitions(self, value):
        self._partitions = _integer("partitions", value, 0, INT32_MAX)

    @property
    def sticky(self):
        """The partition that records without a key go to; -1 for none."""
        return self._sticky

    @sticky.setter
    def sticky(self, value):
        self._sticky = _integer("sticky", value, -1, INT32_MAX)

    def open(self, partition: int, batch: Any, builder: BatchBuilder) -> None:
        """From now on records for a partition go into this builder, and their handles name this batch.

        Raises:
            TypeError: The partition is not an integer, or the builder is not a `BatchBuilder`.
            ValueError: The partition is negative or beyond a million.
        """
        cdef int32_t number = check_partition(partition)
        check_builder(builder, BatchBuilder)
        while len(self._builders) <= number:
            self._builders.append(None)
            self._batches.append(None)
        self._builders[number] = builder
        self._batches[number] = batch

    def close(self, partition: int) -> None:
        """A partition has no open batch.

        Raises:
            TypeError: The partition is not an integer.
        """
        cdef int32_t number = partition_or_none(partition)
        if 0 <= number < len(self._builders):
            self._builders[number] = None
            self._batches[number] = None


cdef class Mutex:
    """A lock for moments: as `threading.Lock`, but waiting for it cannot be interrupted.

    The thread that holds it cannot take it again: a signal handler or a finalizer that tries is told so.
    """

    __signature__ = TwinSignature("Mutex")

    cdef PyThread_type_lock _lock
    cdef unsigned long _owner
    cdef object __weakref__

    def __cinit__(self):
        self._owner = 0
        self._lock = PyThread_allocate_lock()
        if not self._lock:
            raise MemoryError

    def __dealloc__(self):
        if self._lock:
            PyThread_free_lock(self._lock)

    cdef inline bint take(self) noexcept:
        """False if this thread holds it already."""
        cdef unsigned long me = PyThread_get_thread_ident()
        if not PyThread_acquire_lock(self._lock, NOWAIT_LOCK):
            if self._owner == me:
                return False
            with nogil:
                PyThread_acquire_lock(self._lock, WAIT_LOCK)
        self._owner = me
        return True

    cdef inline void give(self) noexcept:
        self._owner = 0
        PyThread_release_lock(self._lock)

    @property
    def held(self) -> bool:
        """Whether this thread holds it."""
        return self._owner == PyThread_get_thread_ident()

    def __enter__(self):
        if not self.take():
            raise reentered("another call of the same producer")

    def __exit__(self, kind, error, trace):
        self.give()


cdef class Appender:
    """Appends records to open batches: what the producer does once per record.

    Args:
        handle: Class of the handles, a subclass of `LazyDelivery`.
        ignore_keys: Whether records with a key go to the sticky partition too.

    Raises:
        TypeError: `handle` is no such class.
    """

    __signature__ = TwinSignature("Appender")

    cdef readonly dict topics
    cdef readonly Mutex lock
    cdef public object fallback
    cdef object _handle
    cdef bint _ignore_keys
    # The present call of `append_rows`: its number and time, and which of the found batches each row went to.
    cdef int64_t _calls
    cdef int64_t _now
    cdef uint8_t _owners[MOST_ROWS]
    cdef uint8_t _owner

    def __init__(self, handle, ignore_keys=False):
        check_handle(handle, LazyDelivery)
        self.topics = {}
        self.lock = Mutex()
        self.fallback = None
        self._handle = handle
        self._ignore_keys = bool(ignore_keys)
        self._calls = 0

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Headers = (),
        on_delivery: Any = None,
    ) -> Any:
        """`append`, or where that does nothing `fallback`, which is called with all arguments by position.

        This is the producer's `send` itself, so that a record costs no call of a Python function.
        """
        cdef object made = None
        if on_delivery is None:
            try:
                made = self._append(topic, value, key, partition, timestamp, headers)
            except (TypeError, ValueError):
                made = None  # the fallback says which setting helps
            if made is not None:
                return made
        return self.fallback(topic, value, key, partition, timestamp, headers, on_delivery)

    def append(
        self,
        topic: str,
        value: Buffer | None,
        key: Buffer | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Headers = (),
    ) -> Any:
        """Append a record to the open batch of its partition, if there is one and it has room.

        Args:
            topic: The topic; its slots are in `topics`.
            value: The value's bytes, or None.
            key: The key's bytes, or None.
            partition: The partition; None takes that of the key, or else the sticky one.
            timestamp: Milliseconds since the epoch; None is now.
            headers: Pairs of str and bytes or None, in a list or tuple; with others, which might be read only once,
                nothing is appended.

        Returns:
            The handle, or None if nothing was appended.

        Raises:
            TypeError: An argument is of a wrong type.
            ValueError: The timestamp is before the epoch, or beyond 64 bits.
        """
        return self._append(topic, value, key, partition, timestamp, headers)

    cdef object _append(self, object topic, object value, object key, object partition, object timestamp, object headers):
        cdef int64_t stamp
        cdef int32_t number
        cdef int32_t index
        cdef Field key_field
        cdef Field value_field
        cdef Field headers_field
        cdef Field* encoded = NULL
        cdef TopicSlots slots
        cdef object builder
        cdef LazyDelivery made
        cdef object found
        if not isinstance(topic, str):
            topic = check_topic(topic)
        found = self.topics.get(topic)
        if found is None:
            return None
        slots = <TopicSlots?>found
        if not isinstance(headers, (tuple, list)):
            return None
        # What may run other code comes before the lock, which that code would wait for in vain if it sends.
        stamp = kclient_now() if timestamp is None else _milliseconds(timestamp)
        if stamp < 0:
            raise negative_timestamp(stamp)
        if not _simple_field(key, &key_field):
            key = _exactly_bytes(as_bytes(key, "key"))
            _set_field(key, &key_field)
        if not _simple_field(value, &value_field):
            value = _exactly_bytes(as_bytes(value, "value"))
            _set_field(value, &value_field)
        if not _no_headers(headers):
            headers = _encode_headers(headers)
            _set_field(headers, &headers_field)
            encoded = &headers_field
        if partition is not None:
            number = partition_or_none(partition)
            if number < 0:
                return None
        elif key is None or self._ignore_keys:
            number = -1
        elif slots._partitions > 0:
            number = (_hash(key) & 0x7FFFFFFF) % slots._partitions
        else:
            return None
        made = _new_handle(self._handle)
        if not self.lock.take():
            return None
        try:
            if number < 0:
                number = slots._sticky
            if not 0 <= number < len(slots._builders):
                return None
            builder = slots._builders[number]
            if builder is None:
                return None
            if (<BatchBuilder>builder)._buffer is None:
                raise builder_closed()
            index = (<BatchBuilder>builder)._put(stamp, &key_field, &value_field, encoded)
            if index < 0:
                return None
            made.batch = slots._batches[number]
            made.index = index
        finally:
            self.lock.give()
        return made

    def append_rows(self, source: RecordSource, start: int = 0, enough: int = 1048576) -> Appended:
        """Append rows of columns to the open batches of their partitions, in their order, as long as that is possible.

        It stops at the first row for which `append` would do nothing or raise, because the batch has no room, or the
        topic, partition or timestamp is none; a null timestamp is now.

        Args:
            source: The rows, with their destinations.
            start: The first row to take.
            enough: Bytes of records after which it stops, to let others have the lock.

        Returns:
            What was appended, perhaps nothing.

        Raises:
            TypeError: The source is none, or has no destinations.
            ValueError: `start` is negative; positions in a column make no sense at the first row to take.
        """
        cdef int64_t first = check_start(start)
        cdef int64_t limit = check_enough(enough)
        cdef RecordSource rows
        cdef list topics
        cdef list batches = []
        cdef list indexes = []
        cdef int64_t taken = 0
        cdef bytes owners
        check_source(source, RecordSource)
        rows = <RecordSource>source
        topics = [self.topics.get(topic) for topic in rows._topics]
        for found in topics:
            if found is not None and not isinstance(found, TopicSlots):
                raise TypeError("topics must hold TopicSlots")
        if not self.lock.take():
            raise reentered("another call of the same producer")
        try:
            self._calls += 1
            self._now = kclient_now()
            while first + taken < rows.rows and taken < MOST_ROWS and limit > 0:
                if not self._append_row(rows, first + taken, topics, batches, indexes, &limit):
                    break
                self._owners[taken] = self._owner
                taken += 1
        except Exception:
            if taken == 0:  # else it will be raised by the next call, which begins with this row
                raise
        finally:
            owners = PyBytes_FromStringAndSize(<const char*>self._owners, taken)
            self.lock.give()
        return batches, indexes, owners

    cdef bint _append_row(
        self, RecordSource rows, int64_t row, list topics, list batches, list indexes, int64_t* limit
    ) except -1:
        cdef int64_t stamp = _stamp(&rows._stamps.stamps, row)
        cdef int32_t topic = rows._numbers.look(row)
        cdef int32_t number = rows._partitions.look(row)
        cdef TopicSlots slots
        cdef BatchBuilder builder
        cdef int64_t size
        cdef Field key
        cdef Field value
        cdef Field headers
        if not 0 <= topic < PyList_GET_SIZE(topics) or number < -1 or stamp < -1:
            return False
        found = topics[topic]
        if found is None:
            return False
        slots = <TopicSlots>found
        if not rows.look(row, &key, &value, &headers):
            raise bad_column(row)
        if number >= 0:
            pass
        elif key.size < 0 or self._ignore_keys:
            number = slots._sticky
        elif slots._partitions > 0:
            number = (_murmur2(<const uint8_t*>key.data, key.size) & 0x7FFFFFFF) % slots._partitions
        if not 0 <= number < PyList_GET_SIZE(slots._builders):
            return False
        found = slots._builders[number]
        if found is None:
            return False
        builder = <BatchBuilder>found
        if builder._buffer is None:
            raise builder_closed()
        size = builder.size
        if builder._call != self._calls and PyList_GET_SIZE(batches) == MOST_BATCHES:
            return False
        if stamp < 0:
            stamp = self._now
        if builder._put(stamp, &key, &value, NULL if rows._headers is None else &headers) < 0:
            return False
        if builder._call != self._calls:
            builder._call = self._calls
            builder._owner = <uint8_t>PyList_GET_SIZE(batches)
            batches.append(slots._batches[number])
            indexes.append(builder.count - 1)
        self._owner = builder._owner
        limit[0] -= builder.size - size
        return True


cdef LazyDelivery _new_handle(object cls):
    cdef PyTypeObject* kind = <PyTypeObject*>cls
    return <LazyDelivery?>kind.tp_new(cls, <PyObject*>_NO_ARGUMENTS, NULL)
