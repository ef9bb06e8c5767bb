# Columns in Arrow's layout, to be read row by row.

cdef struct Cells:
    # Where the items of a column lie. A loop over rows copies it to a variable of its own, which stays in registers
    # whatever the loop writes to memory; the source that it comes from holds the buffers.
    const uint8_t* validity  # NULL: no row is null
    const int32_t* ends
    const int64_t* wide_ends  # instead of `ends`
    const char* data
    int64_t size
    int64_t first


cdef inline bint _span(const Cells* cells, int64_t row, int64_t* begin, int64_t* end) noexcept nogil:
    # Whether the row is not null; it is one of those that were announced.
    cdef int64_t at = cells.first + row
    if cells.validity is not NULL and not cells.validity[at >> 3] >> (at & 7) & 1:
        return False
    if cells.ends is not NULL:
        begin[0] = cells.ends[at]
        end[0] = cells.ends[at + 1]
    elif cells.wide_ends is not NULL:
        begin[0] = cells.wide_ends[at]
        end[0] = cells.wide_ends[at + 1]
    else:  # there is no such column
        return False
    return True


cdef inline bint _cell(const Cells* cells, int64_t row, Field* field) noexcept nogil:
    # Whether the row's positions make sense.
    cdef int64_t begin
    cdef int64_t end
    field.data = NULL
    field.size = -1
    if not _span(cells, row, &begin, &end):
        return True
    if begin < 0 or end < begin or end > cells.size:
        return False
    field.data = cells.data + begin
    field.size = end - begin
    return True


cdef class Positions:
    # Where the items of each row begin and end, and which rows are not null.
    cdef Py_buffer _validity
    cdef Py_buffer _ends
    cdef int _held
    cdef Cells cells

    def __cinit__(self):
        self._held = 0

    def __init__(self, column, int64_t rows):
        cdef int64_t first = column.first
        cdef bint wide = column.wide
        PyObject_GetBuffer(column.ends, &self._ends, PyBUF_SIMPLE)
        self._held = 1
        if column.validity is not None:
            PyObject_GetBuffer(column.validity, &self._validity, PyBUF_SIMPLE)
            self._held = 2
            self.cells.validity = <const uint8_t*>self._validity.buf
        if (
            first < 0 or rows < 0
            or (first + rows + 1) * (8 if wide else 4) > self._ends.len
            or (self._held == 2 and (first + rows + 7) // 8 > self._validity.len)
        ):
            raise bad_column(0)
        self.cells.first = first
        if wide:
            self.cells.wide_ends = <const int64_t*>self._ends.buf
        else:
            self.cells.ends = <const int32_t*>self._ends.buf

    def __dealloc__(self):
        if self._held >= 1:
            PyBuffer_Release(&self._ends)
        if self._held >= 2:
            PyBuffer_Release(&self._validity)


cdef class ColumnSource:
    # Keys or values; holds the buffers as long as it lives, so that they stay where they are.
    cdef Positions _positions
    cdef Py_buffer _data
    cdef bint _held
    cdef Cells cells

    def __cinit__(self):
        self._held = False

    def __init__(self, column, int64_t rows):
        if column is None:
            return
        self._positions = Positions(column, rows)
        PyObject_GetBuffer(column.data, &self._data, PyBUF_SIMPLE)
        self._held = True
        self.cells = self._positions.cells
        self.cells.data = <const char*>self._data.buf
        self.cells.size = self._data.len

    def __dealloc__(self):
        if self._held:
            PyBuffer_Release(&self._data)


@cython.final  # so that looking is inlined
cdef class HeaderSource:
    # The headers of each row, which it writes as a record has them.
    cdef Positions _positions
    cdef ColumnSource _keys
    cdef ColumnSource _values
    cdef int64_t _base
    cdef int64_t _count
    cdef bytearray _encoded

    def __init__(self, column, int64_t rows):
        self._positions = Positions(column, rows)
        self._base = column.base
        self._count = column.total
        self._keys = ColumnSource(column.keys, self._count)
        self._values = ColumnSource(column.values, self._count)
        self._encoded = bytearray(FIRST_CAPACITY)

    cdef int look(self, int64_t row, Field* encoded) except -1:
        # Whether the row makes sense; its headers stay where they are until the next look.
        cdef int64_t begin
        cdef int64_t end
        cdef int64_t position
        cdef int64_t size
        cdef uint8_t* at
        cdef Field key
        cdef Field value
        encoded.data = b"\x00"
        encoded.size = 1
        if not _span(&self._positions.cells, row, &begin, &end):
            return True
        begin -= self._base
        end -= self._base
        if begin < 0 or end < begin or end > self._count:
            return False
        size = kclient_varint_size(<uint64_t>(end - begin) << 1)
        for position in range(begin, end):
            if not _cell(&self._keys.cells, position, &key) or key.size < 0 or not _cell(&self._values.cells, position, &value):
                return False
            size += _field_size(&key) + _field_size(&value)
        if size > PyByteArray_GET_SIZE(self._encoded):
            PyByteArray_Resize(self._encoded, size)
        at = _put_varint(<uint8_t*>PyByteArray_AS_STRING(self._encoded), <uint64_t>(end - begin) << 1)
        for position in range(begin, end):
            _cell(&self._keys.cells, position, &key)
            _cell(&self._values.cells, position, &value)
            at = _put_field(at, &key)
            at = _put_field(at, &value)
        encoded.data = PyByteArray_AS_STRING(self._encoded)
        encoded.size = size
        return True


@cython.final  # so that looking is inlined
cdef class NumberSource:
    # Numbers of 32 bits: one for all rows, or a column.
    cdef Py_buffer _column
    cdef bint _held
    cdef int32_t _constant

    def __cinit__(self):
        self._held = False

    def __init__(self, column, int32_t constant, int64_t rows):
        self._constant = constant
        if column is None:
            return
        PyObject_GetBuffer(column, &self._column, PyBUF_SIMPLE)
        self._held = True
        if rows > self._column.len // 4:
            raise bad_column(0)

    def __dealloc__(self):
        if self._held:
            PyBuffer_Release(&self._column)

    cdef inline int32_t look(self, int64_t row) noexcept:
        return (<const int32_t*>self._column.buf)[row] if self._held else self._constant


cdef struct Stamps:
    # As `Cells`, of timestamps: one for all rows where `column` is NULL.
    const int64_t* column
    int64_t constant


cdef inline int64_t _stamp(const Stamps* stamps, int64_t row) noexcept nogil:
    return stamps.constant if stamps.column is NULL else stamps.column[row]


cdef class StampSource:
    # Timestamps: one for all rows, or a column.
    cdef Py_buffer _column
    cdef bint _held
    cdef Stamps stamps

    def __cinit__(self):
        self._held = False

    def __init__(self, column, constant, int64_t rows):
        if column is None:
            self.stamps.constant = _milliseconds(constant)
            return
        PyObject_GetBuffer(column, &self._column, PyBUF_SIMPLE)
        self._held = True
        if rows > self._column.len // 8:
            raise bad_column(0)
        self.stamps.column = <const int64_t*>self._column.buf

    def __dealloc__(self):
        if self._held:
            PyBuffer_Release(&self._column)


cdef class RecordSource:
    """Records to be appended, read from columns row by row. Holds the columns' buffers as long as it lives.

    Args:
        columns: The columns, in Arrow's layout.
        destinations: Where each row goes, for `Appender.append_rows`; None where that is known.

    Raises:
        TypeError: They are not as `record_columns` makes them.
        ValueError: They contradict each other.
    """

    __signature__ = TwinSignature("RecordSource")

    cdef readonly int64_t rows
    cdef readonly bint has_destinations
    cdef ColumnSource _keys
    cdef ColumnSource _values
    cdef StampSource _stamps
    cdef HeaderSource _headers
    cdef NumberSource _numbers
    cdef NumberSource _partitions
    cdef list _topics

    def __init__(self, columns, destinations=None):
        check_columns(columns)
        self.rows = columns.rows
        self._keys = ColumnSource(columns.keys, self.rows)
        self._values = ColumnSource(columns.values, self.rows)
        self._stamps = StampSource(columns.timestamps, columns.timestamp, self.rows)
        self._headers = None if columns.headers is None else HeaderSource(columns.headers, self.rows)
        self.has_destinations = destinations is not None
        self._topics = []
        if self.has_destinations:
            check_destinations(destinations, self.rows)
            self._topics = [check_topic(topic) for topic in destinations.topics]
            self._numbers = NumberSource(destinations.numbers, 0, self.rows)
            self._partitions = NumberSource(destinations.partitions, -1, self.rows)

    cdef inline int look(self, int64_t row, Field* key, Field* value, Field* headers) except -1:
        # Whether the row makes sense; the headers are only set where there is a column of them.
        if not _cell(&self._keys.cells, row, key) or not _cell(&self._values.cells, row, value):
            return False
        return self._headers is None or self._headers.look(row, headers)
