# Which records of a compacted log survive, mostly without the GIL.

cdef enum:
    SLOT_BYTES = 24
    # A record grows by so much at most where its timestamp changes: a varint of ten bytes, and a longer length.
    RESTAMPED_BYTES = 14


cdef struct Slot:
    uint64_t high
    uint64_t low
    int64_t after  # the offset behind the key's last record; 0 where the slot is free


cdef struct Survey:
    # What a first look at the records of a batch has found.
    int64_t kept
    int64_t deletions
    int64_t index
    int64_t least
    int64_t greatest


cdef inline uint64_t _rotated(uint64_t value, int bits) noexcept nogil:
    return (value << bits) | (value >> (64 - bits))


cdef inline void _sip_round(uint64_t* v) noexcept nogil:
    v[0] += v[1]
    v[1] = _rotated(v[1], 13) ^ v[0]
    v[0] = _rotated(v[0], 32)
    v[2] += v[3]
    v[3] = _rotated(v[3], 16) ^ v[2]
    v[0] += v[3]
    v[3] = _rotated(v[3], 21) ^ v[0]
    v[2] += v[1]
    v[1] = _rotated(v[1], 17) ^ v[2]
    v[2] = _rotated(v[2], 32)


cdef void _sip_hash(
    const uint8_t* data, Py_ssize_t size, const uint64_t* secret, uint64_t* high, uint64_t* low
) noexcept nogil:
    # SipHash-2-4 with 128 bits.
    cdef uint64_t v[4]
    cdef uint64_t word
    cdef Py_ssize_t at = 0
    cdef int round
    v[0] = secret[0] ^ <uint64_t>0x736F6D6570736575
    v[1] = secret[1] ^ <uint64_t>0x646F72616E646F6D ^ <uint64_t>0xEE
    v[2] = secret[0] ^ <uint64_t>0x6C7967656E657261
    v[3] = secret[1] ^ <uint64_t>0x7465646279746573
    while size - at >= 8:
        memcpy(&word, data + at, 8)
        v[3] ^= word
        _sip_round(v)
        _sip_round(v)
        v[0] ^= word
        at += 8
    word = 0
    memcpy(&word, data + at, <size_t>(size - at))
    word ^= <uint64_t>size << 56
    v[3] ^= word
    _sip_round(v)
    _sip_round(v)
    v[0] ^= word
    v[2] ^= 0xEE
    for round in range(4):
        _sip_round(v)
    high[0] = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    for round in range(4):
        _sip_round(v)
    low[0] = v[0] ^ v[1] ^ v[2] ^ v[3]


cdef class KeyOffsets:
    """The last offset of each key that was noted: 24 bytes of memory for each slot, however long the keys are.

    Keys are told apart by 128 bits of a hash with a secret of its own for each table. Nine slots in ten can be taken.

    Args:
        slots: How many there are, 2 to 2^40.

    Raises:
        TypeError: `slots` is not an integer.
        ValueError: It is out of its range.
        MemoryError: There is no memory for so many.
    """

    __signature__ = TwinSignature("KeyOffsets")

    cdef Slot* _table
    cdef uint64_t _secret[2]
    cdef readonly int64_t slots
    cdef readonly int64_t count
    cdef readonly int64_t end
    cdef bint _busy

    def __cinit__(self, slots):
        cdef bytes secret = token_bytes(16)
        memcpy(self._secret, PyBytes_AS_STRING(secret), 16)
        self.slots = _integer("slots", slots, 2, <int64_t>1 << 40)
        self.count = 0
        self.end = 0
        self._busy = False
        self._table = <Slot*>calloc(<size_t>self.slots, SLOT_BYTES)
        if self._table == NULL:
            raise MemoryError

    def __dealloc__(self):
        with nogil:  # a large table takes some milliseconds
            free(self._table)

    @property
    def most(self):
        """How many keys can be noted."""
        return self.slots * 9 // 10

    def note(self, payload, header, int64_t start):
        """Note the keys of one batch's records; those without a key are passed over.

        Args:
            payload: The decompressed records of the batch.
            header: The batch's header.
            start: Records below this offset are passed over.

        Returns:
            False if there was no room for all: `end` is the offset of the first record that was not noted then.

        Raises:
            CorruptRecordError: A record makes no sense; some may have been noted.
        """
        cdef Py_buffer view
        cdef Cursor cursor
        cdef int64_t count = header.count
        cdef int64_t base_offset = header.base_offset
        cdef int64_t index = 0
        cdef int corruption
        if self._busy:
            raise builder_busy()
        self._busy = True
        try:
            PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
            try:
                _set_cursor(&cursor, &view, header.base_timestamp, header.last_offset_delta)
                if view.len >= RELEASE_GIL_BYTES:
                    with nogil:
                        corruption = self._note(&cursor, count, base_offset, start, &index)
                else:
                    corruption = self._note(&cursor, count, base_offset, start, &index)
            finally:
                PyBuffer_Release(&view)
        finally:
            self._busy = False
        if corruption == NEEDS_ROOM:
            self.end = base_offset + cursor.delta
            return False
        if corruption:
            raise record_error(corruption, header, 0, index, cursor.corrupt_at)
        self.end = base_offset + cursor.last_delta + 1
        return True

    cdef int _note(
        self, Cursor* cursor, int64_t count, int64_t base_offset, int64_t start, int64_t* index
    ) noexcept nogil:
        cdef int corruption
        cdef int64_t offset
        cdef Slot* slot
        cdef uint64_t high
        cdef uint64_t low
        while index[0] < count:
            corruption = _advance(cursor)
            if corruption:
                return corruption
            index[0] += 1
            offset = base_offset + cursor.delta
            if cursor.key_size < 0 or offset < start:
                continue
            _sip_hash(cursor.data + cursor.key_at, cursor.key_size, self._secret, &high, &low)
            slot = self._find(high, low)
            if slot.after == 0:
                if self.count >= self.slots * 9 // 10:
                    return NEEDS_ROOM
                self.count += 1
                slot.high = high
                slot.low = low
            slot.after = offset + 1
        return _finish(cursor)

    cdef inline Slot* _find(self, uint64_t high, uint64_t low) noexcept nogil:
        # The slot of a key, or the free one that it would take.
        cdef uint64_t at = high % <uint64_t>self.slots
        cdef Slot* slot
        while True:
            slot = self._table + at
            if slot.after == 0 or (slot.high == high and slot.low == low):
                return slot
            at += 1
            if at == <uint64_t>self.slots:
                at = 0

    def passed(self, end):
        """Go on behind what has nothing to note.

        Args:
            end: The offset behind it, 0 to 2^63 - 1.

        Raises:
            TypeError: It is not an integer.
            ValueError: It is out of its range.
        """
        self.end = _integer("end", end, 0, INT64_MAX)

    def superseded(self, bytes key not None, int64_t offset):
        """Whether a later record of a key than that at an offset was noted."""
        return self._superseded(<const uint8_t*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), offset)

    cdef inline bint _superseded(self, const uint8_t* key, Py_ssize_t size, int64_t offset) noexcept nogil:
        cdef uint64_t high
        cdef uint64_t low
        _sip_hash(key, size, self._secret, &high, &low)
        return self._find(high, low).after > offset + 1


cdef int _survey(
    Cursor* cursor, KeyOffsets offsets, int64_t count, int64_t base_offset, bint tombstones, uint8_t* flags,
    Survey* found,
) noexcept nogil:
    # Which records survive.
    cdef int corruption
    cdef int64_t offset
    cdef bint survives
    while found.index < count:
        corruption = _advance(cursor)
        if corruption:
            return corruption
        offset = base_offset + cursor.delta
        if offset >= offsets.end:
            survives = True
        elif cursor.key_size < 0 or (cursor.value_size < 0 and not tombstones):
            survives = False
        else:
            survives = not offsets._superseded(cursor.data + cursor.key_at, cursor.key_size, offset)
        flags[found.index] = survives
        found.index += 1
        if not survives:
            continue
        found.kept += 1
        if cursor.value_size < 0:
            found.deletions += 1
        if cursor.timestamp < found.least:
            found.least = cursor.timestamp
        if cursor.timestamp > found.greatest:
            found.greatest = cursor.timestamp
    return _finish(cursor)


cdef Py_ssize_t _copy_survivors(
    Cursor* cursor, int64_t count, const uint8_t* flags, bint restamps, int64_t base, uint8_t* out, Py_ssize_t room
) noexcept nogil:
    # How many bytes they take; -1 if the records have changed meanwhile. They are checked again for that.
    cdef uint8_t* at = out
    cdef Py_ssize_t begin
    cdef Py_ssize_t tail
    cdef int64_t index
    cdef int64_t value = 0
    cdef uint64_t delta
    for index in range(count):
        begin = cursor.position
        if _advance(cursor):
            return -1
        if not flags[index]:
            continue
        if room - (at - out) < cursor.end - begin + RESTAMPED_BYTES:
            return -1
        if not restamps:
            memcpy(at, cursor.data + begin, <size_t>(cursor.end - begin))
            at += cursor.end - begin
            continue
        tail = begin
        if _read_varint(cursor.data, &tail, cursor.end, &value):
            return -1
        begin = tail
        tail += 1
        if _read_varlong(cursor.data, &tail, cursor.end, &value):
            return -1
        delta = _zigzag(cursor.timestamp - base)
        at = _put_varint(at, <uint64_t>(1 + kclient_varint_size(delta) + cursor.end - tail) << 1)
        at[0] = cursor.data[begin]
        at = _put_varint(at + 1, delta)
        memcpy(at, cursor.data + tail, <size_t>(cursor.end - tail))
        at += cursor.end - tail
    return at - out


def surviving_records(payload, header, KeyOffsets offsets not None, bint tombstones, horizon):
    """The records of one batch that a compaction keeps.

    Those from `offsets.end` on are kept. Of the others those that have a key, of which no later one was noted; without
    a value only where `tombstones` says so.

    Args:
        payload: The decompressed records of the batch.
        header: The batch's header.
        offsets: The last offset of each key.
        tombstones: Whether records without a value are kept.
        horizon: The batch's new base timestamp if records without a value are kept, in milliseconds since the epoch;
            None to leave it. It is left, too, where a timestamp is too far away from it.

    Raises:
        CorruptRecordError: A record makes no sense.
    """
    cdef Py_buffer view
    cdef Cursor cursor
    cdef Survey found
    cdef int64_t count = header.count
    cdef int64_t base_offset = header.base_offset
    cdef int64_t base_timestamp = header.base_timestamp
    cdef int64_t last_delta = header.last_offset_delta
    cdef int64_t base = base_timestamp if horizon is None else horizon
    cdef bint restamps
    cdef Py_ssize_t room
    cdef Py_ssize_t used = 0
    cdef uint8_t* flags = NULL
    cdef uint8_t* out = NULL
    cdef int corruption
    if offsets._busy:
        raise builder_busy()
    offsets._busy = True
    try:
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        try:
            check_count(header, 0, view.len)
            flags = <uint8_t*>realloc(NULL, <size_t>count + 1)
            if flags == NULL:
                raise MemoryError
            found.kept = found.deletions = found.index = 0
            found.least = INT64_MAX
            found.greatest = INT64_MIN
            _set_cursor(&cursor, &view, base_timestamp, last_delta)
            if view.len >= RELEASE_GIL_BYTES:
                with nogil:
                    corruption = _survey(&cursor, offsets, count, base_offset, tombstones, flags, &found)
            else:
                corruption = _survey(&cursor, offsets, count, base_offset, tombstones, flags, &found)
            if corruption:
                raise record_error(corruption, header, 0, found.index, cursor.corrupt_at)
            if found.kept == 0:
                return Survivors(0, b"", -1, False)
            restamps = (
                horizon is not None
                and found.deletions > 0
                and not _goes_beyond(found.least, base)
                and not _goes_beyond(found.greatest, base)
            )
            if found.kept == count and not restamps:
                return Survivors(found.kept, None, found.greatest, False)
            room = view.len + <Py_ssize_t>(found.kept + 1) * RESTAMPED_BYTES
            out = <uint8_t*>realloc(NULL, <size_t>room)
            if out == NULL:
                raise MemoryError
            _set_cursor(&cursor, &view, base_timestamp, last_delta)
            if view.len >= RELEASE_GIL_BYTES:
                with nogil:
                    used = _copy_survivors(&cursor, count, flags, restamps, base, out, room)
            else:
                used = _copy_survivors(&cursor, count, flags, restamps, base, out, room)
            if used < 0:
                raise RuntimeError("the records changed while they were read")
            return Survivors(found.kept, PyBytes_FromStringAndSize(<const char*>out, used), found.greatest, restamps)
        finally:
            free(flags)
            free(out)
            PyBuffer_Release(&view)
    finally:
        offsets._busy = False


cdef inline bint _goes_beyond(int64_t timestamp, int64_t base) noexcept nogil:
    # Whether the difference has no room in 64 bits.
    return (base < 0 and timestamp > INT64_MAX + base) or (base > 0 and timestamp < INT64_MIN + base)
