# Reading into Arrow's layout, mostly without the GIL.

cdef int _ensure(bytearray buffer, int64_t needed) except -1:
    # Room for so many bytes; what is behind the used part is not initialised and cut off at the end.
    cdef int64_t capacity = PyByteArray_GET_SIZE(buffer)
    if capacity < needed:
        PyByteArray_Resize(buffer, max(needed, 2 * capacity))
    return 0


cdef struct BinaryColumn:
    # Where to write keys or values: Arrow's validity bitmap, ends and data.
    uint8_t* bits
    int32_t* ends
    char* data
    int64_t used
    int64_t room
    int64_t nulls
    bint wanted


cdef inline void _put_binary(
    BinaryColumn* column, int64_t row, const uint8_t* data, Py_ssize_t at, Py_ssize_t size
) noexcept nogil:
    cdef uint8_t bit = <uint8_t>(1 << (row & 7))
    if bit == 1:
        column.bits[row >> 3] = 0
    if size < 0:
        column.nulls += 1
    else:
        column.bits[row >> 3] |= bit
        if size > 0:
            memcpy(column.data + column.used, data + at, <size_t>size)
            column.used += size
    column.ends[row + 1] = <int32_t>column.used


cdef inline int64_t _microseconds(int64_t milliseconds) noexcept nogil:
    if milliseconds > INT64_MAX // 1000:
        return INT64_MAX
    if milliseconds < INT64_MIN // 1000:
        return INT64_MIN
    return milliseconds * 1000


cdef struct HeaderPlace:
    Py_ssize_t at
    Py_ssize_t end
    Py_ssize_t count


cdef struct Filling:
    # What the loop over a batch's records needs, in C, so that it runs without the GIL.
    Cursor cursor
    BinaryColumn keys
    BinaryColumn values
    int64_t* offsets
    int64_t* timestamps
    HeaderPlace* headers
    int64_t base_offset
    int64_t start
    int64_t end
    int64_t count
    int64_t index
    int64_t first
    int64_t row
    int64_t appended
    bint stamped
    bint waiting


cdef int _fill(Filling* filling) noexcept nogil:
    cdef Cursor* cursor = &filling.cursor
    cdef int64_t offset
    cdef int64_t first = filling.first
    cdef int corruption
    while filling.index < filling.count:
        if filling.waiting:
            filling.waiting = False  # the record was read, and there is room for it now
        else:
            corruption = _advance(cursor)
            if corruption:
                return corruption
        offset = filling.base_offset + cursor.delta
        if offset < filling.start or offset >= filling.end:
            filling.index += 1
            continue
        if filling.keys.wanted:
            if cursor.key_size > filling.keys.room - filling.keys.used:
                filling.waiting = True
                return NEEDS_ROOM
            _put_binary(&filling.keys, filling.row, cursor.data, cursor.key_at, cursor.key_size)
        if filling.values.wanted:
            _put_binary(&filling.values, filling.row, cursor.data, cursor.value_at, cursor.value_size)
        filling.index += 1
        filling.offsets[filling.row] = offset
        filling.timestamps[filling.row] = _microseconds(filling.appended if filling.stamped else cursor.timestamp)
        if filling.headers != NULL:
            filling.headers[filling.row - first].at = cursor.headers_at
            filling.headers[filling.row - first].end = cursor.end
            filling.headers[filling.row - first].count = cursor.headers_count
        filling.row += 1
    return _finish(cursor)


cdef class ColumnBuilder:
    """Collects the records of batches as columns in Arrow's layout.

    Args:
        include_headers: Whether the headers are wanted too.
        keys: Whether the keys are.
        values: Whether the values are.
    """

    __signature__ = TwinSignature("ColumnBuilder")

    cdef int64_t _rows
    cdef int64_t _size
    cdef int64_t _key_used
    cdef int64_t _key_nulls
    cdef int64_t _value_used
    cdef int64_t _value_nulls
    cdef bytearray _key_bits
    cdef bytearray _key_ends
    cdef bytearray _key_data
    cdef bytearray _value_bits
    cdef bytearray _value_ends
    cdef bytearray _value_data
    cdef bytearray _offsets
    cdef bytearray _timestamps
    cdef list _headers
    cdef bint _keys_wanted
    cdef bint _values_wanted
    # Set while a batch is decoded without the GIL: another thread must not move the buffers then.
    cdef bint _busy

    def __cinit__(self):
        self._busy = False

    def __init__(self, include_headers=False, keys=True, values=True):
        if self._busy:
            raise builder_busy()
        self._keys_wanted = bool(keys)
        self._values_wanted = bool(values)
        self._clear(bool(include_headers))

    cdef int _clear(self, bint include_headers) except -1:
        self._rows = self._size = 0
        self._key_used = self._key_nulls = self._value_used = self._value_nulls = 0
        self._key_bits = bytearray()
        self._key_ends = bytearray(4)
        self._key_data = bytearray()
        self._value_bits = bytearray()
        self._value_ends = bytearray(4)
        self._value_data = bytearray()
        self._offsets = bytearray()
        self._timestamps = bytearray()
        self._headers = [] if include_headers else None
        return 0

    def append(self, payload, header, position, int64_t start, int64_t end):
        """Append the records of one batch with `start <= offset < end`; returns how many there were.

        After an error the builder is to be dropped.

        Raises:
            CorruptRecordError: A record makes no sense.
            RecordTooLargeError: The batches are together larger than Arrow's positions of 32 bits can tell.
            IllegalStateError: Another thread is appending (where the GIL is released meanwhile).
        """
        cdef Py_buffer view
        if self._busy:
            raise builder_busy()
        self._busy = True
        try:
            PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
            try:
                return self._append(&view, header, position, start, end)
            finally:
                PyBuffer_Release(&view)
        finally:
            self._busy = False

    def append_dense(self, header, int64_t start, int64_t end):
        """Append rows for one batch by its header alone, where each offset from its first to its last has a record.

        Of such rows only the offset is told, and the timestamp that a broker gave all of them; keys, values and headers
        must not be wanted.
        """
        cdef int64_t base = header.base_offset
        cdef int64_t first = max(base, start)
        cdef int64_t last = min(base + <int64_t>header.count, end)
        cdef int64_t rows = max(last - first, <int64_t>0)
        cdef int64_t stamp = _microseconds(header.max_timestamp)
        cdef int64_t* offsets
        cdef int64_t* timestamps
        cdef int64_t row
        if self._busy:
            raise builder_busy()
        _ensure(self._offsets, (self._rows + rows) * 8)
        _ensure(self._timestamps, (self._rows + rows) * 8)
        offsets = <int64_t*>PyByteArray_AS_STRING(self._offsets) + self._rows
        timestamps = <int64_t*>PyByteArray_AS_STRING(self._timestamps) + self._rows
        for row in range(rows):
            offsets[row] = first + row
            timestamps[row] = stamp
        self._rows += rows
        return rows

    cdef object _append(self, Py_buffer* view, object header, object position, int64_t start, int64_t end):
        cdef Filling filling
        cdef int64_t count = header.count
        cdef int64_t base_timestamp = header.base_timestamp
        cdef int64_t last_delta = header.last_offset_delta
        cdef int64_t before = self._rows
        cdef bytearray places = None
        cdef int corruption
        self._size += view.len
        if self._size > INT32_MAX:
            raise columns_too_large()
        check_count(header, position, view.len)
        if count < 0 or count > view.len // MIN_RECORD_BYTES:
            raise AssertionError("check_count let an impossible number of records pass")
        _set_cursor(&filling.cursor, view, base_timestamp, last_delta)
        filling.headers = NULL
        if self._headers is not None:
            places = bytearray(count * sizeof(HeaderPlace))
            filling.headers = <HeaderPlace*>PyByteArray_AS_STRING(places)
        filling.base_offset = header.base_offset
        filling.start = start
        filling.end = end
        filling.count = count
        filling.index = 0
        filling.row = before
        filling.appended = header.max_timestamp
        filling.stamped = header.timestamp_type is _LOG_APPEND_TIME
        filling.first = before
        filling.waiting = False
        self._reserve(&filling, count, view.len)
        while True:
            if view.len < RELEASE_GIL_BYTES:
                corruption = _fill(&filling)
            else:
                with nogil:
                    corruption = _fill(&filling)
            if corruption != NEEDS_ROOM:
                break
            self._key_used = filling.keys.used
            self._reserve_keys(&filling, filling.keys.used + max(filling.cursor.key_size, filling.keys.used))
        if corruption:
            raise record_error(corruption, header, position, filling.index, filling.cursor.corrupt_at)
        self._rows = filling.row
        self._key_used = filling.keys.used
        self._key_nulls = filling.keys.nulls
        self._value_used = filling.values.used
        self._value_nulls = filling.values.nulls
        if places is not None:
            self._read_headers(&filling, filling.row - before)
        return filling.row - before

    cdef int _reserve(self, Filling* filling, int64_t count, int64_t size) except -1:
        # What a batch can need at most, as nothing can grow while the GIL is released; keys are small, mostly.
        cdef int64_t rows = self._rows + count
        filling.keys.wanted = self._keys_wanted
        filling.values.wanted = self._values_wanted
        if self._keys_wanted:
            _ensure(self._key_bits, (rows + 7) // 8)
            _ensure(self._key_ends, (rows + 1) * 4)
        if self._values_wanted:
            _ensure(self._value_bits, (rows + 7) // 8)
            _ensure(self._value_ends, (rows + 1) * 4)
            _ensure(self._value_data, self._value_used + size)
        _ensure(self._offsets, rows * 8)
        _ensure(self._timestamps, rows * 8)
        filling.keys.bits = <uint8_t*>PyByteArray_AS_STRING(self._key_bits)
        filling.keys.ends = <int32_t*>PyByteArray_AS_STRING(self._key_ends)
        filling.keys.used = self._key_used
        if self._keys_wanted:
            self._reserve_keys(filling, self._key_used + min(size, FIRST_CAPACITY + size // 16))
        filling.keys.nulls = self._key_nulls
        filling.values.bits = <uint8_t*>PyByteArray_AS_STRING(self._value_bits)
        filling.values.ends = <int32_t*>PyByteArray_AS_STRING(self._value_ends)
        filling.values.data = PyByteArray_AS_STRING(self._value_data)
        filling.values.used = self._value_used
        filling.values.room = PyByteArray_GET_SIZE(self._value_data)
        filling.values.nulls = self._value_nulls
        filling.offsets = <int64_t*>PyByteArray_AS_STRING(self._offsets)
        filling.timestamps = <int64_t*>PyByteArray_AS_STRING(self._timestamps)
        return 0

    cdef int _reserve_keys(self, Filling* filling, int64_t needed) except -1:
        _ensure(self._key_data, needed)
        filling.keys.data = PyByteArray_AS_STRING(self._key_data)
        filling.keys.room = PyByteArray_GET_SIZE(self._key_data)
        return 0

    cdef int _read_headers(self, Filling* filling, int64_t rows) except -1:
        cdef HeaderPlace* place
        cdef int64_t row
        for row in range(rows):
            place = &filling.headers[row]
            if place.count:
                self._headers.append(_read_headers(filling.cursor.data, place.at, place.end, place.count))
            else:
                self._headers.append(None)
        return 0

    def finish(self):
        """The columns; the builder is empty then."""
        if self._busy:
            raise builder_busy()
        cdef int64_t rows = self._rows
        cdef int64_t keys = rows if self._keys_wanted else 0
        cdef int64_t values = rows if self._values_wanted else 0
        PyByteArray_Resize(self._key_bits, (keys + 7) // 8)
        PyByteArray_Resize(self._value_bits, (values + 7) // 8)
        PyByteArray_Resize(self._key_ends, (keys + 1) * 4)
        PyByteArray_Resize(self._value_ends, (values + 1) * 4)
        PyByteArray_Resize(self._key_data, self._key_used)
        PyByteArray_Resize(self._value_data, self._value_used)
        PyByteArray_Resize(self._offsets, rows * 8)
        PyByteArray_Resize(self._timestamps, rows * 8)
        columns = Columns(
            rows,
            self._key_bits if self._key_nulls else None, self._key_ends, self._key_data,
            self._value_bits if self._value_nulls else None, self._value_ends, self._value_data,
            self._offsets, self._timestamps, self._headers,
        )
        self._clear(self._headers is not None)
        return columns
