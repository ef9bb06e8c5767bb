# Looking through the records of a batch, piece by piece, mostly without the GIL.

cdef enum:
    # What of a record comes next, where the record does not lie in one piece.
    AT_LENGTH = 0
    AT_ATTRIBUTES = 1
    AT_TIMESTAMP = 2
    AT_DELTA = 3
    AT_KEY = 4
    AT_VALUE = 5
    AT_HEADER_COUNT = 6
    AT_HEADER_KEY = 7
    AT_HEADER_VALUE = 8
    AT_END = 9
    SCAN_EVENT = 14  # no corruption: a record that somebody wants to know of
    MOST_KEYLESS = 10000


cdef struct Scanning:
    Cursor cursor
    int64_t count
    int64_t index
    int64_t base_offset_delta
    int64_t since
    int64_t least
    int64_t greatest
    int64_t stamp
    int64_t delta
    int64_t key_size
    bint consecutive
    bint needs_keys
    bint searches
    bint found
    # of a record that does not lie in one piece
    bint torn
    int stage
    int shift
    uint64_t raw
    int64_t left
    int64_t skip
    int64_t headers
    Py_ssize_t began


cdef int _take_stage(Scanning* scan, int64_t value) noexcept nogil:
    # A number of a torn record has been read.
    cdef int stage = scan.stage
    if stage == AT_LENGTH:
        if value < 0:
            return CORRUPT_RECORD_LENGTH
        if value == 0:
            return CORRUPT_TRUNCATED
        scan.left = value
        scan.stage = AT_ATTRIBUTES
    elif stage == AT_TIMESTAMP:
        if _overflows(scan.cursor.base_timestamp, value):
            return CORRUPT_TIMESTAMP
        scan.stamp = scan.cursor.base_timestamp + value
        scan.stage = AT_DELTA
    elif stage == AT_DELTA:
        if value < 0 or value > scan.cursor.last_delta:
            return CORRUPT_OFFSET_DELTA
        scan.delta = value
        scan.stage = AT_KEY
    elif stage == AT_KEY or stage == AT_VALUE:
        if value < -1 or value > scan.left:
            return CORRUPT_KEY_LENGTH if stage == AT_KEY else CORRUPT_VALUE_LENGTH
        if stage == AT_KEY:
            scan.key_size = value
        scan.skip = max(value, 0)
        scan.stage = stage + 1
    elif stage == AT_HEADER_COUNT:
        if value < 0 or value > scan.left // 2:
            return CORRUPT_HEADER_COUNT
        scan.headers = value
        scan.stage = AT_HEADER_KEY if value else AT_END
    elif stage == AT_HEADER_KEY:
        if value < 0 or value > scan.left:
            return CORRUPT_HEADER_KEY_LENGTH
        scan.skip = value
        scan.stage = AT_HEADER_VALUE
    else:
        if value < -1 or value > scan.left:
            return CORRUPT_HEADER_VALUE_LENGTH
        scan.skip = max(value, 0)
        scan.headers -= 1
        scan.stage = AT_HEADER_KEY if scan.headers else AT_END
    return CORRUPT_NONE


cdef int _advance_torn(Scanning* scan) noexcept nogil:
    # Reads on in a record of which only a part is there; `torn` is unset at its end. The place of a corruption is `began`.
    cdef const uint8_t* data = scan.cursor.data
    cdef Py_ssize_t at = scan.cursor.position
    cdef Py_ssize_t size = scan.cursor.size
    cdef int64_t some
    cdef int last_shift
    cdef uint8_t last_bits
    cdef uint8_t byte
    cdef int corruption
    while True:
        if scan.skip:
            some = min(scan.skip, <int64_t>(size - at))
            at += <Py_ssize_t>some
            scan.skip -= some
            scan.left -= some
        if scan.stage == AT_END and scan.skip == 0:
            if scan.left:
                scan.began = at
                return CORRUPT_RECORD_REMAINDER
            scan.torn = False
            break
        if at >= size:
            break
        if scan.shift == 0:
            scan.began = at
        if scan.stage != AT_LENGTH:
            if scan.left == 0:
                return CORRUPT_TRUNCATED
            scan.left -= 1
        byte = data[at]
        at += 1
        if scan.stage == AT_ATTRIBUTES:
            scan.stage = AT_TIMESTAMP
            continue
        last_shift = 63 if scan.stage == AT_TIMESTAMP else 28
        last_bits = 0x01 if scan.stage == AT_TIMESTAMP else 0x0F
        scan.raw |= <uint64_t>(byte & 0x7F) << scan.shift
        if scan.shift == last_shift and byte > last_bits:
            return CORRUPT_VARINT
        if byte >= 0x80:
            scan.shift += 7
            continue
        corruption = _take_stage(scan, <int64_t>(scan.raw >> 1) ^ -<int64_t>(scan.raw & 1))
        if corruption:
            return corruption
        scan.raw = 0
        scan.shift = 0
    scan.cursor.position = at
    return CORRUPT_NONE


cdef int _take_record(Scanning* scan) noexcept nogil:
    # A whole record has been read; `began` is where it began, as far as that is known.
    if scan.consecutive and scan.delta != scan.index:
        return CORRUPT_OFFSET_DELTA
    if scan.stamp < scan.least:
        scan.least = scan.stamp
    if scan.stamp > scan.greatest:
        scan.greatest = scan.stamp
    scan.index += 1
    if scan.searches and scan.stamp >= scan.since and scan.delta >= scan.base_offset_delta:
        scan.found = True
        return SCAN_EVENT
    return SCAN_EVENT if scan.key_size < 0 and scan.needs_keys else CORRUPT_NONE


cdef inline bint _is_whole(Cursor* cursor) noexcept nogil:
    # Whether the next record lies in this piece to its end.
    cdef Py_ssize_t at = cursor.position
    cdef int64_t length = 0
    if _read_varint(cursor.data, &at, cursor.size, &length):
        return False
    return 0 <= length <= cursor.size - at


cdef int _scan_piece(Scanning* scan) noexcept nogil:
    cdef Cursor* cursor = &scan.cursor
    cdef int corruption
    while cursor.position < cursor.size:
        if scan.index == scan.count and not scan.torn:
            scan.began = cursor.position
            return CORRUPT_BATCH_REMAINDER
        if not scan.torn:
            scan.began = cursor.position
            if _advance_plain(cursor):
                corruption = CORRUPT_NONE
            elif _is_whole(cursor):
                corruption = _advance_carefully(cursor)
                if corruption:
                    scan.began = cursor.corrupt_at
                    return corruption
            else:
                scan.torn = True
                scan.stage = AT_LENGTH
                scan.shift = 0
                scan.raw = 0
                scan.skip = 0
        if scan.torn:
            corruption = _advance_torn(scan)
            if corruption:
                return corruption
            if scan.torn:
                return CORRUPT_NONE
        else:
            scan.stamp = cursor.timestamp
            scan.delta = cursor.delta
            scan.key_size = cursor.key_size
        corruption = _take_record(scan)
        if corruption:
            return corruption
    return CORRUPT_NONE


cdef class RecordScan:
    """Looks through the records of one batch, piece by piece as they are decompressed, and keeps none.

    Each record is checked as readers check it. Without `since` the batch is one that a producer has made: its offsets
    are numbered without gaps.

    Args:
        header: The batch's header.
        needs_keys: Whether to note which records have no key.
        since: Look for the first record that is not older, in milliseconds since the epoch; None for a producer's
            batch.
        first_delta: The first offset that may be found, less the batch's first one.
    """

    __signature__ = TwinSignature("RecordScan")

    cdef Scanning _scan
    cdef object _header
    cdef list _keyless
    cdef int64_t _before
    cdef bint _busy

    def __init__(self, header, *, bint needs_keys=False, since=None, int64_t first_delta=0):
        cdef Scanning* scan = &self._scan
        self._header = header
        self._keyless = []
        self._before = 0
        self._busy = False
        scan.cursor.base_timestamp = header.base_timestamp
        scan.cursor.last_delta = header.last_offset_delta
        scan.count = header.count
        scan.index = 0
        scan.base_offset_delta = first_delta
        scan.consecutive = since is None
        scan.needs_keys = needs_keys
        scan.searches = since is not None
        scan.since = 0 if since is None else since
        scan.found = False
        scan.least = INT64_MAX
        scan.greatest = INT64_MIN
        scan.torn = False
        scan.skip = 0
        scan.shift = 0
        scan.stage = AT_LENGTH

    @property
    def count(self):
        """How many records were read."""
        return self._scan.index

    @property
    def keyless(self):
        """The first 10,000 records without a key, by their numbers in the batch, if they are to be noted."""
        return self._keyless

    @property
    def least_timestamp(self):
        """The least timestamp so far, in milliseconds since the epoch; -1 without a record."""
        return self._scan.least if self._scan.index else -1

    @property
    def greatest_timestamp(self):
        """The greatest timestamp so far, in milliseconds since the epoch; -1 without a record."""
        return self._scan.greatest if self._scan.index else -1

    @property
    def found(self):
        """What was looked for: its offset, less the batch's first one, and its timestamp; None until it has come."""
        return (self._scan.delta, self._scan.stamp) if self._scan.found else None

    def feed(self, piece):
        """Look through the next piece, up to what is looked for.

        Raises:
            CorruptRecordError: A record makes no sense, or there is one more than there should be.
        """
        cdef Py_buffer view
        cdef Scanning* scan = &self._scan
        cdef int corruption = CORRUPT_NONE
        cdef bint release
        if self._busy:
            raise builder_busy()
        self._busy = True
        try:
            PyObject_GetBuffer(piece, &view, PyBUF_SIMPLE)
            try:
                scan.cursor.data = <const uint8_t*>view.buf
                scan.cursor.size = view.len
                scan.cursor.position = 0
                release = view.len >= RELEASE_GIL_BYTES
                while not scan.found:
                    if release:
                        with nogil:
                            corruption = _scan_piece(scan)
                    else:
                        corruption = _scan_piece(scan)
                    if corruption != SCAN_EVENT:
                        break
                    if not scan.found and len(self._keyless) < MOST_KEYLESS:
                        self._keyless.append(scan.index - 1)
                if corruption and corruption != SCAN_EVENT:
                    raise record_error(corruption, self._header, 0, scan.index, self._before + scan.began)
                self._before += view.len
            finally:
                PyBuffer_Release(&view)
        finally:
            self._busy = False

    def finish(self):
        """The last piece has come.

        Raises:
            CorruptRecordError: There are fewer records than there should be, or the last one is not whole.
        """
        if self._scan.torn or self._scan.index != self._scan.count:
            raise record_error(CORRUPT_TRUNCATED, self._header, 0, self._scan.index, self._before)
