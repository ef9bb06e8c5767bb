# Reading: a cursor over the records of a batch, and objects from it.

cdef struct Cursor:
    # Where the parts of a record are; `advance` moves it over the records of one batch.
    const uint8_t* data
    Py_ssize_t size
    Py_ssize_t position
    int64_t base_timestamp
    int64_t last_delta
    int64_t delta
    int64_t timestamp
    Py_ssize_t key_at
    Py_ssize_t key_size
    Py_ssize_t value_at
    Py_ssize_t value_size
    Py_ssize_t headers_at
    Py_ssize_t headers_count
    Py_ssize_t end
    Py_ssize_t corrupt_at


cdef int _read_long_varint(
    const uint8_t* data, Py_ssize_t* position, Py_ssize_t end, int64_t* value, int last_shift, uint8_t last_bits
) noexcept nogil:
    cdef Py_ssize_t at = position[0]
    cdef uint64_t raw = 0
    cdef int shift = 0
    cdef uint8_t byte
    while at < end:
        byte = data[at]
        at += 1
        raw |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            if shift == last_shift and byte > last_bits:
                return CORRUPT_VARINT
            value[0] = <int64_t>(raw >> 1) ^ -<int64_t>(raw & 1)
            position[0] = at
            return CORRUPT_NONE
        if shift == last_shift:
            return CORRUPT_VARINT
        shift += 7
    return CORRUPT_TRUNCATED


cdef inline int _read_varint(
    const uint8_t* data, Py_ssize_t* position, Py_ssize_t end, int64_t* value
) noexcept nogil:
    # At most 32 bits; one and two bytes inline. Where it is corrupt the position stays where the number begins.
    cdef Py_ssize_t at = position[0]
    cdef uint32_t raw
    if at < end:
        raw = data[at]
        if raw < 0x80:
            value[0] = <int64_t>(raw >> 1) ^ -<int64_t>(raw & 1)
            position[0] = at + 1
            return CORRUPT_NONE
        if at + 1 < end and data[at + 1] < 0x80:
            raw = (raw & 0x7F) | (<uint32_t>data[at + 1] << 7)
            value[0] = <int64_t>(raw >> 1) ^ -<int64_t>(raw & 1)
            position[0] = at + 2
            return CORRUPT_NONE
    return _read_long_varint(data, position, end, value, 28, 0x0F)


cdef inline int _read_varlong(
    const uint8_t* data, Py_ssize_t* position, Py_ssize_t end, int64_t* value
) noexcept nogil:
    cdef Py_ssize_t at = position[0]
    cdef uint8_t byte
    if at < end:
        byte = data[at]
        if byte < 0x80:
            value[0] = <int64_t>(byte >> 1) ^ -<int64_t>(byte & 1)
            position[0] = at + 1
            return CORRUPT_NONE
    return _read_long_varint(data, position, end, value, 63, 0x01)


cdef inline int _read_length(
    const uint8_t* data, Py_ssize_t* position, Py_ssize_t end, Py_ssize_t* size, int64_t least, int corruption
) noexcept nogil:
    # A length between `least` and what is left; where it is corrupt the position stays where the length begins.
    cdef Py_ssize_t at = position[0]
    cdef int64_t value = 0
    cdef int wrong = _read_varint(data, &at, end, &value)
    if wrong:
        return wrong
    if value < least or value > end - at:
        return corruption
    size[0] = <Py_ssize_t>value
    position[0] = at
    return CORRUPT_NONE


cdef inline bint _overflows(int64_t left, int64_t right) noexcept nogil:
    return (right > 0 and left > INT64_MAX - right) or (right < 0 and left < INT64_MIN - right)


cdef int _skip_headers(Cursor* cursor, Py_ssize_t* position) noexcept nogil:
    cdef Py_ssize_t index
    cdef Py_ssize_t size = 0
    cdef int corruption
    for index in range(cursor.headers_count):
        corruption = _read_length(cursor.data, position, cursor.end, &size, 0, CORRUPT_HEADER_KEY_LENGTH)
        if corruption:
            return corruption
        position[0] += size
        corruption = _read_length(cursor.data, position, cursor.end, &size, -1, CORRUPT_HEADER_VALUE_LENGTH)
        if corruption:
            return corruption
        if size > 0:
            position[0] += size
    return CORRUPT_NONE


cdef int _advance_fields(Cursor* cursor, Py_ssize_t* at) noexcept nogil:
    # Reads a record; where it is corrupt `at` is where the faulty field begins.
    cdef const uint8_t* data = cursor.data
    cdef Py_ssize_t start
    cdef Py_ssize_t size = 0
    cdef Py_ssize_t end
    cdef int64_t value = 0
    cdef int corruption

    corruption = _read_length(data, at, cursor.size, &size, 0, CORRUPT_RECORD_LENGTH)
    if corruption:
        return corruption
    if size == 0:
        return CORRUPT_TRUNCATED
    end = at[0] + size
    cursor.end = end
    at[0] += 1  # the attributes, of which none is in use

    start = at[0]
    corruption = _read_varlong(data, at, end, &value)
    if corruption:
        return corruption
    if _overflows(cursor.base_timestamp, value):
        at[0] = start
        return CORRUPT_TIMESTAMP
    cursor.timestamp = cursor.base_timestamp + value

    start = at[0]
    corruption = _read_varint(data, at, end, &value)
    if corruption:
        return corruption
    if value < 0 or value > cursor.last_delta:
        at[0] = start
        return CORRUPT_OFFSET_DELTA
    cursor.delta = value

    corruption = _read_length(data, at, end, &cursor.key_size, -1, CORRUPT_KEY_LENGTH)
    if corruption:
        return corruption
    cursor.key_at = at[0]
    if cursor.key_size > 0:
        at[0] += cursor.key_size

    corruption = _read_length(data, at, end, &cursor.value_size, -1, CORRUPT_VALUE_LENGTH)
    if corruption:
        return corruption
    cursor.value_at = at[0]
    if cursor.value_size > 0:
        at[0] += cursor.value_size

    start = at[0]
    corruption = _read_varint(data, at, end, &value)
    if corruption:
        return corruption
    if value < 0 or value > (end - at[0]) // 2:
        at[0] = start
        return CORRUPT_HEADER_COUNT
    cursor.headers_count = <Py_ssize_t>value
    cursor.headers_at = at[0]
    if value:
        corruption = _skip_headers(cursor, at)
        if corruption:
            return corruption
    return CORRUPT_NONE if at[0] == end else CORRUPT_RECORD_REMAINDER


cdef inline Py_ssize_t _take_short(const uint8_t* data, Py_ssize_t at, int64_t* value) noexcept nogil:
    # The position behind a number of at most three bytes, which are known to be there; 0 if it is longer.
    cdef uint32_t raw = data[at]
    if raw >= 0x80:
        raw = (raw & 0x7F) | (<uint32_t>data[at + 1] << 7)
        at += 1
        if raw >= 0x4000:
            raw = (raw & 0x3FFF) | (<uint32_t>data[at + 1] << 14)
            at += 1
            if raw >= 0x200000:
                return 0
    value[0] = <int64_t>(raw >> 1) ^ -<int64_t>(raw & 1)
    return at + 1


cdef inline bint _advance_plain(Cursor* cursor) noexcept nogil:
    # Reads a record without headers, whose numbers are short, and checks no field by itself: if the record ends
    # exactly where its length says then every field lies within it. Else the careful way says what is wrong.
    cdef const uint8_t* data = cursor.data
    cdef Py_ssize_t at = cursor.position
    cdef Py_ssize_t size = cursor.size
    cdef Py_ssize_t end
    cdef Py_ssize_t key_at
    cdef Py_ssize_t value_at
    cdef int64_t length = 0
    cdef int64_t stamp = 0
    cdef int64_t delta = 0
    cdef int64_t key_size = 0
    cdef int64_t value_size = 0
    if size - at < PLAIN_BYTES:
        return False
    at = _take_short(data, at, &length)
    if at == 0 or length <= 0 or length > size - at:
        return False
    end = at + length
    at = _take_short(data, at + 1, &stamp)
    if at == 0:
        return False
    at = _take_short(data, at, &delta)
    if at == 0:
        return False
    at = _take_short(data, at, &key_size)
    if at == 0 or key_size < -1:
        return False
    key_at = at
    if key_size > 0:
        at += key_size
    if size - at < 3:
        return False
    at = _take_short(data, at, &value_size)
    if at == 0 or value_size < -1:
        return False
    value_at = at
    if value_size > 0:
        at += value_size
    if at + 1 != end or data[at] != 0 or delta < 0 or delta > cursor.last_delta:
        return False
    if _overflows(cursor.base_timestamp, stamp):
        return False
    cursor.timestamp = cursor.base_timestamp + stamp
    cursor.delta = delta
    cursor.key_at = key_at
    cursor.key_size = key_size
    cursor.value_at = value_at
    cursor.value_size = value_size
    cursor.headers_at = end
    cursor.headers_count = 0
    cursor.end = end
    cursor.position = end
    return True


cdef inline int _advance(Cursor* cursor) noexcept nogil:
    if _advance_plain(cursor):
        return CORRUPT_NONE
    return _advance_carefully(cursor)


cdef int _advance_carefully(Cursor* cursor) noexcept nogil:
    cdef Py_ssize_t at = cursor.position
    cdef int corruption = _advance_fields(cursor, &at)
    if corruption:
        cursor.corrupt_at = at
        return corruption
    cursor.position = at
    return CORRUPT_NONE


cdef inline int _finish(Cursor* cursor) noexcept nogil:
    if cursor.position != cursor.size:
        cursor.corrupt_at = cursor.position
        return CORRUPT_BATCH_REMAINDER
    return CORRUPT_NONE


cdef inline object _nullable(const uint8_t* data, Py_ssize_t at, Py_ssize_t size):
    if size < 0:
        return None
    return PyBytes_FromStringAndSize(<const char*>data + at, size)


cdef tuple _read_headers(const uint8_t* data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t count):
    # They were checked before; checked again, because what is read twice may have changed in between.
    cdef list headers = []
    cdef Py_ssize_t size = 0
    cdef Py_ssize_t index
    for index in range(count):
        if _read_length(data, &at, end, &size, 0, CORRUPT_HEADER_KEY_LENGTH):
            raise RuntimeError("the records changed while they were read")
        key = PyUnicode_DecodeUTF8(<char*>data + at, size, "replace")  # as Java does
        at += size
        if _read_length(data, &at, end, &size, -1, CORRUPT_HEADER_VALUE_LENGTH):
            raise RuntimeError("the records changed while they were read")
        headers.append((key, _nullable(data, at, size)))
        if size > 0:
            at += size
    return tuple(headers)


cdef void _set_cursor(Cursor* cursor, const Py_buffer* view, int64_t base_timestamp, int64_t last_delta) noexcept:
    cursor.data = <const uint8_t*>view.buf
    cursor.size = view.len
    cursor.position = 0
    cursor.base_timestamp = base_timestamp
    cursor.last_delta = last_delta
    cursor.corrupt_at = 0


def parse_records(
    payload,
    header,
    position,
    str topic not None,
    int32_t partition,
    int64_t start,
    int64_t end,
    key_deserializer,
    value_deserializer,
    list records not None,
):
    """Append the records of one batch with `start <= offset < end` to `records`; see `ParseRecords`."""
    cdef Py_buffer view
    cdef Cursor cursor
    cdef ConsumerRecord record
    cdef int64_t base_offset = header.base_offset
    cdef int64_t count = header.count
    cdef int64_t appended = header.max_timestamp
    cdef int8_t timestamp_type = int(header.timestamp_type)
    cdef int32_t epoch = header.partition_leader_epoch
    cdef int64_t base_timestamp = header.base_timestamp
    cdef int64_t last_delta = header.last_offset_delta
    cdef int64_t offset
    cdef int64_t index = 0
    cdef int corruption = CORRUPT_NONE
    cdef bint deserialize = key_deserializer is not None or value_deserializer is not None
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        _set_cursor(&cursor, &view, base_timestamp, last_delta)
        while index < count:
            corruption = _advance(&cursor)
            if corruption:
                raise record_error(corruption, header, position, index, cursor.corrupt_at)
            index += 1
            # Headers of a batch are checked not to overflow; so is the difference against the last one.
            offset = base_offset + cursor.delta
            if offset < start or offset >= end:
                continue
            record = ConsumerRecord.__new__(ConsumerRecord)
            record.topic = topic
            record.partition = partition
            record.offset = offset
            record.timestamp = appended if timestamp_type == 1 else cursor.timestamp
            record._timestamp_type = timestamp_type
            record._leader_epoch = epoch
            record.key = _nullable(cursor.data, cursor.key_at, cursor.key_size)
            record.value = _nullable(cursor.data, cursor.value_at, cursor.value_size)
            if cursor.headers_count:
                record.headers = _read_headers(cursor.data, cursor.headers_at, cursor.end, cursor.headers_count)
            else:
                record.headers = ()
            if deserialize:
                _deserialize(record, key_deserializer, value_deserializer)
            records.append(record)
        corruption = _finish(&cursor)
        if corruption:
            raise record_error(corruption, header, position, index, cursor.corrupt_at)
    finally:
        PyBuffer_Release(&view)


cdef int _deserialize(ConsumerRecord record, object key_deserializer, object value_deserializer) except -1:
    if key_deserializer is not None and record.key is not None:
        try:
            record.key = key_deserializer(record.topic, record.headers, record.key)
        except Exception as error:
            raise deserialization_error("key", record.topic, record.partition, record.offset) from error
    if value_deserializer is not None and record.value is not None:
        try:
            record.value = value_deserializer(record.topic, record.headers, record.value)
        except Exception as error:
            raise deserialization_error("value", record.topic, record.partition, record.offset) from error
    return 0
