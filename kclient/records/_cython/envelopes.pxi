# Batches among messages that hold one each, in an envelope that says whose it is.

cdef enum:
    FIRST_MESSAGES = 64
    NO_BATCH = -1


cdef struct EnvelopedMessage:
    int64_t end
    int64_t offset
    int64_t key  # NO_BATCH if it holds none


cdef inline uint32_t _uint32_at(const uint8_t* data) noexcept nogil:
    return <uint32_t>data[0] << 24 | <uint32_t>data[1] << 16 | <uint32_t>data[2] << 8 | <uint32_t>data[3]


cdef inline uint64_t _uint64_at(const uint8_t* data) noexcept nogil:
    return <uint64_t>_uint32_at(data) << 32 | <uint64_t>_uint32_at(data + 4)


cdef inline int _numbers_of(str name, object numbers, Py_buffer* view) except -1:
    # The caller gives the buffer back.
    if not isinstance(numbers, array):
        check_numbers(name, numbers)
    PyObject_GetBuffer(numbers, view, PyBUF_FORMAT)
    if view.format == NULL or view.format[0] != 113:  # "q"
        PyBuffer_Release(view)
        check_numbers(name, numbers)
    return 0


cdef class EnvelopedBatches:
    """Where the batches lie among messages that hold one each, in an envelope; nothing of them is copied.

    Messages are numbered one after the other. What follows on one that is not whole, or not the one that is due, is
    left out. Batches are not looked at, but for their base offsets.

    Args:
        messages: One behind the other. They may not change.
        first: The number of the first one, from 0 on.
        layout: What an envelope looks like.

    Raises:
        TypeError: An argument is of a wrong type.
        ValueError: A number is out of its range.
    """

    __signature__ = TwinSignature("EnvelopedBatches")

    cdef Py_buffer _view
    cdef bint _held
    cdef int64_t _first
    cdef int64_t _head
    cdef int64_t _count
    cdef EnvelopedMessage* _found

    def __cinit__(self, messages, first, layout):
        check_layout(layout)
        PyObject_GetBuffer(as_buffer(messages, "messages"), &self._view, PyBUF_SIMPLE)
        self._held = True
        self._first = check_first(first)
        self._walk(layout.size, layout.mark, ~<uint32_t>layout.kinds, layout.length_at, layout.key_at, layout.number_at)

    def __dealloc__(self):
        free(self._found)
        if self._held:
            PyBuffer_Release(&self._view)

    cdef int _walk(
        self, int64_t head, uint32_t mark, uint32_t others, int64_t length_at, int64_t key_at, int64_t number_at
    ) except -1:
        cdef const uint8_t* data = <const uint8_t*>self._view.buf
        cdef int64_t size = self._view.len
        cdef int64_t place = 0
        cdef int64_t length
        cdef int64_t key
        cdef int64_t room = 0
        cdef int64_t count = 0
        cdef uint32_t word
        cdef void* larger
        self._head = head
        while place + head + HEADER_BYTES <= size:
            length = _uint32_at(data + place + length_at)
            if (
                _uint64_at(data + place + number_at) != <uint64_t>self._first + <uint64_t>count
                or length < HEADER_BYTES
                or length > size - place - head
            ):
                break
            word = _uint32_at(data + place)
            if word == mark:
                key = _uint32_at(data + place + key_at)
            elif (word ^ mark) & others:
                break
            else:
                key = NO_BATCH
            if count == room:
                room = max(2 * room, <int64_t>FIRST_MESSAGES)
                larger = realloc(self._found, <size_t>room * sizeof(EnvelopedMessage))
                if larger == NULL:
                    raise MemoryError
                self._found = <EnvelopedMessage*>larger
            self._found[count].offset = <int64_t>_uint64_at(data + place + head)
            self._found[count].key = key
            place += head + length
            self._found[count].end = place
            count += 1
        self._count = count
        return 0

    cdef inline int64_t _begin(self, int64_t at) noexcept:
        return (self._found[at - 1].end if at else 0) + self._head

    cdef inline bint _has(self, int64_t number) noexcept:
        cdef int64_t first = self._first
        return first <= number and number - first < self._count and self._found[number - first].key != NO_BATCH

    @property
    def first(self):
        """The number of the first message."""
        return self._first

    @property
    def next(self):
        """The number behind the last message."""
        return <object>self._first + <object>self._count  # which may be more than 63 bits

    def place(self, number):
        """Where in the messages a batch begins, and where it ends.

        Args:
            number: Of its message.

        Raises:
            TypeError: It is no integer.
            ValueError: There is no such message, or it holds no batch.
        """
        cdef int64_t found = _integer("number", number, 0, INT64_MAX)
        if not self._has(found):
            raise not_there(found)
        return self._begin(found - self._first), self._found[found - self._first].end

    def select(self, key, numbers, offsets, start, most, room):
        """How many of somebody's batches are here and have room, one after the other; and their bytes.

        Each has to be in the message with its number, under the key, with its base offset. The first one needs no room.

        Args:
            key: Whose they are.
            numbers: Those of the messages (type code "q").
            offsets: The base offsets, in parallel.
            start: Where in the arrays to begin.
            most: No more batches than this.
            room: In bytes.

        Raises:
            TypeError: An argument is of a wrong type.
            ValueError: A number is out of its range.
        """
        cdef int64_t wanted = _integer("key", key, 0, <int64_t>0xFFFFFFFF)
        cdef Py_buffer in_order
        cdef Py_buffer bases
        cdef int64_t begin
        cdef int64_t limit
        cdef int64_t left
        cdef int64_t count = 0
        cdef int64_t size = 0
        _numbers_of("numbers", numbers, &in_order)
        try:
            _numbers_of("offsets", offsets, &bases)
            try:
                begin = _integer("start", start, 0, INT64_MAX)
                limit = _integer("most", most, 0, INT64_MAX)
                left = _integer("room", room, 0, INT64_MAX)
                limit = min(limit, min(in_order.len, bases.len) // 8 - begin)
                self._select(
                    wanted, <const int64_t*>in_order.buf + begin, <const int64_t*>bases.buf + begin, limit, left,
                    &count, &size,
                )
            finally:
                PyBuffer_Release(&bases)
        finally:
            PyBuffer_Release(&in_order)
        return count, size

    cdef void _select(
        self, int64_t key, const int64_t* numbers, const int64_t* offsets, int64_t limit, int64_t room,
        int64_t* count, int64_t* size,
    ) noexcept:
        cdef int64_t at
        cdef int64_t length
        cdef const EnvelopedMessage* found
        while count[0] < limit:
            at = numbers[count[0]] - self._first
            if numbers[count[0]] < self._first or at >= self._count:
                return
            found = self._found + at
            if found.key != key or found.offset != offsets[count[0]]:
                return
            length = found.end - self._begin(at)
            if count[0] and length > room - size[0]:
                return
            count[0] += 1
            size[0] += length


cdef int64_t _size_of_piece(EnvelopedBatches batches, const int64_t* numbers, int64_t count) except -1:
    cdef int64_t size = 0
    cdef int64_t number
    for number in range(count):
        if not batches._has(numbers[number]):
            raise not_there(numbers[number])
        size += batches._found[numbers[number] - batches._first].end - batches._begin(numbers[number] - batches._first)
    return size


def gather_batches(
    pieces: Sequence[tuple[EnvelopedBatches, array[int], int, int]], into: bytearray | memoryview
) -> None:
    """Copy batches out of some messages, one behind the other.

    Args:
        pieces: What they are taken from; the numbers of messages; where in these to begin; and how many.
        into: Where to, of the size that they have together.

    Raises:
        TypeError: An argument is of a wrong type.
        ValueError: A message is not there, or holds no batch, or there are fewer numbers; or the size is another one.
    """
    # The GIL is kept: copying some mebibytes takes less time than getting it back from a busy thread may take.
    cdef int64_t size = 0
    cdef int64_t begin
    cdef int64_t count
    cdef int64_t at
    cdef int64_t number
    cdef int64_t length
    cdef int64_t place
    cdef EnvelopedBatches batches
    cdef Py_buffer view
    cdef Py_buffer room
    cdef const int64_t* numbers
    cdef char* target
    cdef list found = []
    for source, among, start, many in pieces:
        if not isinstance(source, EnvelopedBatches):
            raise TypeError(f"batches must be EnvelopedBatches, not {type(source).__name__}")
        _numbers_of("numbers", among, &view)
        try:
            begin = _integer("start", start, 0, view.len // 8)
            count = _integer("count", many, 0, view.len // 8 - begin)
            size += _size_of_piece(source, <const int64_t*>view.buf + begin, count)
        finally:
            PyBuffer_Release(&view)
        found.append((source, among, begin, count))
    PyObject_GetBuffer(check_target(into, size), &room, PyBUF_WRITABLE)
    try:
        target = <char*>room.buf
        for source, among, start, many in found:
            batches = source
            begin = start
            count = many
            _numbers_of("numbers", among, &view)
            try:
                numbers = <const int64_t*>view.buf + begin
                if begin + count > view.len // 8 or _size_of_piece(batches, numbers, count) > size:
                    raise ValueError("numbers has changed meanwhile")
                for number in range(count):
                    at = numbers[number] - batches._first
                    place = batches._begin(at)
                    length = batches._found[at].end - place
                    memcpy(target, <const char*>batches._view.buf + place, <size_t>length)
                    target += length
                    size -= length
            finally:
                PyBuffer_Release(&view)
    finally:
        PyBuffer_Release(&room)
