# Writing: the fields of a record, and the builder of batches.

cdef inline uint64_t _zigzag(int64_t value) noexcept nogil:
    return (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)


cdef inline uint8_t* _put_varint(uint8_t* at, uint64_t value) noexcept nogil:
    while value > 0x7F:
        at[0] = <uint8_t>(value & 0x7F) | 0x80
        at += 1
        value >>= 7
    at[0] = <uint8_t>value
    return at + 1


cdef struct Field:
    # A key or value to write; size -1 is null.
    const char* data
    int64_t size


cdef inline int64_t _field_size(Field* field) noexcept nogil:
    if field.size < 0:
        return 1
    return kclient_varint_size(<uint64_t>field.size << 1) + field.size


cdef inline uint8_t* _put_field(uint8_t* at, Field* field) noexcept nogil:
    if field.size < 0:
        at[0] = 1
        return at + 1
    at = _put_varint(at, <uint64_t>field.size << 1)
    memcpy(at, field.data, <size_t>field.size)
    return at + field.size


cdef inline bint _simple_field(object data, Field* field) noexcept:
    # Null or exactly bytes: no conversion, nothing to release.
    if data is None:
        field.data = NULL
        field.size = -1
        return True
    if PyBytes_CheckExact(data):
        field.data = PyBytes_AS_STRING(data)
        field.size = PyBytes_GET_SIZE(data)
        return True
    return False


cdef inline bint _no_headers(object headers):
    # Whether there are certainly none; what else is empty the careful way looks at.
    return PyTuple_CheckExact(headers) and PyTuple_GET_SIZE(headers) == 0


cdef inline bytes _encoded_key(object key):
    if PyUnicode_CheckExact(key):
        try:
            return PyUnicode_AsUTF8String(key)
        except UnicodeEncodeError:  # the exception for that is the shared one
            pass
    return <bytes?>header_key(key)


cdef bytes _encode_headers(object headers):
    # The header part of a record: the number, then key and value of each.
    cdef list parts = []
    cdef Field field
    cdef int64_t size
    cdef uint8_t* at
    cdef object key
    cdef object value
    if not PyTuple_CheckExact(headers) and not PyList_CheckExact(headers):
        headers = header_list(headers)
    for header in headers:
        if type(header) is tuple and len(<tuple>header) == 2:
            key = (<tuple>header)[0]
            value = (<tuple>header)[1]
        else:
            key, value = header_pair(header)
        parts.append(_encoded_key(key))
        parts.append(None if value is None else _exactly_bytes(as_bytes(value, "header value")))
    size = kclient_varint_size(<uint64_t>len(parts))  # two parts a header, and zigzag doubles the number
    for part in parts:
        _set_field(part, &field)
        size += _field_size(&field)
    encoded = PyBytes_FromStringAndSize(NULL, size)
    at = _put_varint(<uint8_t*>PyBytes_AS_STRING(encoded), <uint64_t>len(parts))
    for part in parts:
        _set_field(part, &field)
        at = _put_field(at, &field)
    return encoded


cdef bytes _exactly_bytes(object data):
    # A bytearray is copied, as it may change; never calls anything that a subclass can define.
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return PyBytes_FromStringAndSize(<const char*>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


cdef int _set_field(object data, Field* field) except -1:
    if not _simple_field(data, field):
        raise TypeError("bytes or None expected")
    return 0


cdef object _exportable(object data, str what):
    # What can be copied from without a copy in between.
    if data is None:
        return None
    if isinstance(data, memoryview):
        try:
            if data.c_contiguous:
                return data
        except ValueError:  # it was released; the exception for that is the shared one
            pass
    return as_bytes(data, what)


cdef class BatchBuilder:
    """Builds one record batch, record by record.

    Not thread-safe; its owner guards it.

    Args:
        limit: Greatest size in bytes before compression, header included (the producer's `batch.size`). A record
            that would exceed it is refused, except that an empty batch takes a record of any size.
        compression: How `build` compresses the records.
        level: Compression level, or None for Kafka's default.
        is_transactional: Whether the batch belongs to a transaction.
        is_control: Whether the batch holds a control record.
        delete_horizon: Milliseconds since the epoch from when compaction may remove the batch's tombstones and
            markers (KIP-534), which takes the place of the base timestamp; None for a batch without.

    Raises:
        ConfigError: A setting is of a wrong type, or out of its range.
    """

    __signature__ = TwinSignature("BatchBuilder")

    cdef int64_t _limit
    cdef readonly object compression
    cdef readonly int32_t count
    cdef readonly int64_t size
    cdef readonly int64_t first_timestamp
    cdef readonly int64_t max_timestamp
    cdef object _level
    cdef object _attributes
    cdef bint _has_horizon
    cdef int64_t _base_timestamp
    cdef int64_t _next_delta  # of the next record's offset
    # Timestamps as runs: pairs of int64, the first index of a run and the timestamp that holds from there on.
    cdef bytearray _runs  # of which so many are used
    cdef int64_t _run_count
    cdef int64_t _last_timestamp
    # The last call of `Appender.append_rows` that found this builder, and which of its batches it was there.
    cdef int64_t _call
    cdef uint8_t _owner
    # Grows by resizing; nobody else has it before `build`, so it is never exported while it grows.
    cdef bytearray _buffer
    cdef bytearray _batch

    def __init__(
        self,
        *,
        limit,
        compression=CompressionType.NONE,
        level=None,
        is_transactional=False,
        is_control=False,
        delete_horizon=None,
    ):
        self._limit = check_limit(limit)
        self.compression = check_compression(compression)
        self._level = check_level(self.compression, level)
        self._has_horizon = delete_horizon is not None
        self._base_timestamp = check_delete_horizon(delete_horizon)
        self._next_delta = 0
        self._attributes = attributes_of(
            self.compression,
            is_transactional=bool(is_transactional),
            is_control=bool(is_control),
            has_delete_horizon=self._has_horizon,
        )
        self.count = 0
        self.size = HEADER_BYTES
        self.first_timestamp = -1
        self.max_timestamp = -1
        self._runs = bytearray()
        self._run_count = 0
        self._last_timestamp = -2  # no record has it
        self._call = 0
        self._owner = 0
        self._buffer = bytearray(HEADER_BYTES)
        self._batch = None

    @property
    def limit(self):
        """Greatest size in bytes before compression, header included; may be changed."""
        return self._limit

    @limit.setter
    def limit(self, value):
        self._limit = check_limit(value)

    @property
    def timestamp_runs(self):
        """The records' timestamps as runs: first index, timestamp, first index, timestamp, and so on."""
        return array("q", self._runs[: 16 * self._run_count])

    def append(self, timestamp: int, key: Buffer | None, value: Buffer | None, headers: Headers = ()) -> int:
        """Append a record.

        Args:
            timestamp: Milliseconds since the epoch, or -1 for none.
            key: The key, or None.
            value: The value, or None (a tombstone).
            headers: Pairs of str and bytes or None.

        Returns:
            The record's index in the batch, or -1 if it would exceed the limit; then nothing has changed.

        Raises:
            TypeError: The timestamp, key, value or a header is of a wrong type.
            ValueError: The timestamp is before the epoch, or beyond 64 bits.
            RecordTooLargeError: The record fits into no batch.
            IllegalStateError: The batch was built.
        """
        return self._append(_milliseconds(timestamp), key, value, headers)

    def append_at(
        self, offset_delta: int, timestamp: int, key: Buffer | None, value: Buffer | None, headers: Headers = ()
    ) -> int:
        """Append a record at an offset of its own, as compaction leaves gaps.

        Args:
            offset_delta: The record's offset less the batch's base offset; greater than that of the record before.
            timestamp: Milliseconds since the epoch, or -1 for none.
            key: The key, or None.
            value: The value, or None (a tombstone).
            headers: Pairs of str and bytes or None.

        Returns:
            The record's index in the batch, or -1 if it would exceed the limit; then nothing has changed.

        Raises:
            ValueError: The offset is not behind that of the record before, or beyond 31 bits; else as `append`.
        """
        cdef int64_t before = self._next_delta
        cdef int32_t index = -1
        self._next_delta = check_offset_delta(offset_delta, before)
        try:
            index = self._append(_milliseconds(timestamp), key, value, headers)
        finally:
            if index < 0:
                self._next_delta = before
        return index

    def append_many(
        self,
        timestamp: int,
        values: Sequence[Buffer | None],
        keys: Sequence[Buffer | None] | None = None,
        start: int = 0,
    ) -> int:
        """Append records without headers from `values[start]` on, until the batch is full.

        Args:
            timestamp: The timestamp of all of them.
            values: Their values.
            keys: Their keys, as many as values; None for records without keys.
            start: Index of the first record to take.

        Returns:
            How many records were taken. On an error those before the faulty one have been taken.

        Raises:
            TypeError: Values or keys are not a sequence.
            ValueError: The numbers of keys and values differ, or `start` is negative; else as `append`.
        """
        cdef int64_t stamp = _milliseconds(timestamp)
        cdef Py_ssize_t first = check_start(start)
        cdef Py_ssize_t total
        cdef Py_ssize_t index
        cdef object key = None
        check_many(values, keys)
        total = len(values)
        with cython.boundscheck(True):  # the sequences may change while a value is converted
            for index in range(first, total):
                if keys is not None:
                    key = keys[index]
                if self._append(stamp, key, values[index], ()) < 0:
                    return index - first
        return max(total - first, 0)

    def append_columns(self, columns: RecordColumns, start: int = 0) -> int:
        """Append the rows of columns (as `record_columns` makes them) from row `start` on, until the batch is full.

        Args:
            columns: The columns, in Arrow's layout.
            start: The first row to take.

        Returns:
            How many rows were taken. On an error those before the faulty one have been taken.

        Raises:
            TypeError: The columns are not as `record_columns` makes them.
            ValueError: `start` is negative, or positions in a column make no sense; else as `append`.
        """
        cdef int64_t first = check_start(start)
        cdef RecordSource source = RecordSource(columns)
        cdef Cells keys = source._keys.cells
        cdef Cells values = source._values.cells
        cdef Stamps stamps = source._stamps.stamps
        cdef HeaderSource headers = source._headers
        cdef int64_t rows = source.rows
        cdef int64_t row
        cdef int64_t timestamp
        cdef Field key
        cdef Field value
        cdef Field encoded
        cdef Field* given = NULL if headers is None else &encoded
        if self._buffer is None:
            raise builder_closed()
        for row in range(first, rows):
            if not _cell(&keys, row, &key) or not _cell(&values, row, &value):
                raise bad_column(row)
            if given is not NULL and not headers.look(row, given):
                raise bad_column(row)
            timestamp = _stamp(&stamps, row)
            if timestamp < -1:
                raise bad_timestamp(timestamp)
            if self._put(timestamp, &key, &value, given) < 0:
                return row - first
        return max(rows - first, 0)

    cdef int32_t _append(self, int64_t timestamp, object key, object value, object headers) except? -1:
        cdef Field key_field
        cdef Field value_field
        if self._buffer is None:
            raise builder_closed()
        if _simple_field(key, &key_field) and _simple_field(value, &value_field) and _no_headers(headers):
            return self._put(timestamp, &key_field, &value_field, NULL)
        return self._append_converted(timestamp, key, value, headers)

    cdef int32_t _append_converted(self, int64_t timestamp, object key, object value, object headers) except? -1:
        cdef Field key_field
        cdef Field value_field
        cdef Py_buffer key_view
        cdef Py_buffer value_view
        cdef Field headers_field
        cdef bytes encoded
        key = _exportable(key, "key")
        value = _exportable(value, "value")
        encoded = _encode_headers(headers)
        _set_field(encoded, &headers_field)
        if self._buffer is None:  # user code ran in between
            raise builder_closed()
        # Exported while they are copied, so a bytearray cannot move.
        key_field.data = NULL
        key_field.size = -1
        value_field.data = NULL
        value_field.size = -1
        if key is not None:
            PyObject_GetBuffer(key, &key_view, PyBUF_SIMPLE)
            key_field.data = <const char*>key_view.buf
            key_field.size = key_view.len
        try:
            if value is not None:
                PyObject_GetBuffer(value, &value_view, PyBUF_SIMPLE)
                value_field.data = <const char*>value_view.buf
                value_field.size = value_view.len
            try:
                return self._put(timestamp, &key_field, &value_field, &headers_field)
            finally:
                if value is not None:
                    PyBuffer_Release(&value_view)
        finally:
            if key is not None:
                PyBuffer_Release(&key_view)

    cdef int32_t _put(self, int64_t timestamp, Field* key, Field* value, Field* headers) except? -1:
        # The headers are encoded; NULL for none.
        cdef int32_t index = self.count
        cdef int64_t base = self._base_timestamp if index or self._has_horizon else timestamp
        cdef uint64_t delta = _zigzag(timestamp - base)  # both are at least -1: no overflow
        cdef uint64_t offset_delta = <uint64_t>self._next_delta << 1
        cdef int64_t headers_size = 1 if headers is NULL else headers.size
        cdef int64_t body = (
            1 + kclient_varint_size(delta) + kclient_varint_size(offset_delta)
            + _field_size(key) + _field_size(value) + headers_size
        )
        cdef int64_t record = kclient_varint_size(<uint64_t>body << 1) + body
        cdef int64_t size = self.size + record
        cdef uint8_t* at
        if size > self._limit or size > _MAX_BATCH_SIZE or self._next_delta > INT32_MAX:
            if index:
                return -1
            if size > _MAX_BATCH_SIZE:
                raise record_too_large(record)
        if size > PyByteArray_GET_SIZE(self._buffer):
            self._grow(size)
        if timestamp != self._last_timestamp:
            self._begin_run(index, timestamp)
        at = <uint8_t*>PyByteArray_AS_STRING(self._buffer) + self.size
        at = _put_varint(at, <uint64_t>body << 1)
        at[0] = 0
        at = _put_varint(at + 1, delta)
        at = _put_varint(at, offset_delta)
        at = _put_field(at, key)
        at = _put_field(at, value)
        if headers is NULL:
            at[0] = 0
        else:
            memcpy(at, headers.data, <size_t>headers_size)
        self.size = size
        self.count = index + 1
        self._next_delta += 1
        if index == 0:
            self.first_timestamp = timestamp
            self._base_timestamp = base
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        return index

    cdef int _begin_run(self, int64_t index, int64_t timestamp) except -1:
        cdef int64_t* run
        if 16 * (self._run_count + 1) > PyByteArray_GET_SIZE(self._runs):
            PyByteArray_Resize(self._runs, 32 * self._run_count + 16)
        run = <int64_t*>PyByteArray_AS_STRING(self._runs) + 2 * self._run_count
        run[0] = index
        run[1] = timestamp
        self._run_count += 1
        self._last_timestamp = timestamp
        return 0

    cdef int _grow(self, int64_t needed) except -1:
        # In steps that copy little in all, and not so much at once that a small batch's memory goes back to the system.
        cdef int64_t capacity = PyByteArray_GET_SIZE(self._buffer) * 4
        if capacity < FIRST_CAPACITY:
            capacity = FIRST_CAPACITY
        if capacity > self._limit:
            capacity = self._limit
        if capacity < needed:
            capacity = needed
        PyByteArray_Resize(self._buffer, capacity)
        return 0

    def build(
        self,
        base_offset: int = 0,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        partition_leader_epoch: int = -1,
        last_offset_delta: int | None = None,
    ) -> bytearray:
        """Compress the records and write the header; the builder is closed then.

        Called again, it writes the header of the same bytearray anew, without compressing again.

        Args:
            base_offset: Offset of the first record.
            producer_id: Id of the idempotent producer, or -1.
            producer_epoch: Its epoch, or -1.
            base_sequence: Sequence number of the first record, or -1.
            partition_leader_epoch: Epoch of the leader that appends the batch, or -1.
            last_offset_delta: Where the batch ends, if compaction removed its last records; None for the last one.

        Returns:
            The batch. It belongs to the builder until the builder is dropped.

        Raises:
            IllegalStateError: There are no records.
            TypeError: A number is not an integer.
            ValueError: A number is out of its range; `last_offset_delta` lies before the last record.
        """
        if self.count == 0:
            raise builder_empty()
        last_delta = check_last_delta(last_offset_delta, self._next_delta - 1)
        base_offset, producer_id, producer_epoch, base_sequence, partition_leader_epoch = check_stamps(
            base_offset, producer_id, producer_epoch, base_sequence, partition_leader_epoch, last_delta
        )
        if self._batch is None:
            self._batch = self._compressed()
        write_header(
            self._batch,
            base_offset=base_offset,
            partition_leader_epoch=partition_leader_epoch,
            attributes=self._attributes,
            last_offset_delta=last_delta,
            base_timestamp=self._base_timestamp,
            max_timestamp=self.max_timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            count=self.count,
        )
        return self._batch

    cdef bytearray _compressed(self):
        cdef bytearray batch = self._buffer
        self._buffer = None
        PyByteArray_Resize(batch, self.size)
        if self.compression is not _NO_COMPRESSION:
            with memoryview(batch) as view:
                payload = compress(self.compression, view[HEADER_BYTES:], self._level)
            del batch[HEADER_BYTES:]
            batch += payload
        return batch
