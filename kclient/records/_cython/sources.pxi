# Columns in Arrow's layout, to be read row by row.

cdef class ColumnSource:
    # Keys or values; holds the buffers as long as it lives, so that they stay where they are.
    cdef Py_buffer _validity
    cdef Py_buffer _ends
    cdef Py_buffer _data
    cdef int _held
    cdef int64_t _first

    def __cinit__(self):
        self._held = 0

    def __init__(self, column, int64_t rows):
        if column is None:
            return
        self._first = column.first
        PyObject_GetBuffer(column.ends, &self._ends, PyBUF_SIMPLE)
        self._held = 1
        PyObject_GetBuffer(column.data, &self._data, PyBUF_SIMPLE)
        self._held = 2
        if column.validity is not None:
            PyObject_GetBuffer(column.validity, &self._validity, PyBUF_SIMPLE)
            self._held = 3
        if (
            self._first < 0 or rows < 0 or self._first > INT32_MAX or rows > INT32_MAX
            or (self._first + rows + 1) * 4 > self._ends.len
            or (self._held == 3 and (self._first + rows + 7) // 8 > self._validity.len)
        ):
            raise bad_column(0)

    def __dealloc__(self):
        if self._held >= 1:
            PyBuffer_Release(&self._ends)
        if self._held >= 2:
            PyBuffer_Release(&self._data)
        if self._held >= 3:
            PyBuffer_Release(&self._validity)

    cdef inline bint look(self, int64_t row, Field* field) noexcept:
        # Whether the row's positions make sense; the row is one of those that were announced.
        cdef int64_t at = self._first + row
        cdef int64_t begin
        cdef int64_t end
        field.data = NULL
        field.size = -1
        if self._held == 0:
            return True
        if self._held == 3 and not (<const uint8_t*>self._validity.buf)[at >> 3] >> (at & 7) & 1:
            return True
        begin = (<const int32_t*>self._ends.buf)[at]
        end = (<const int32_t*>self._ends.buf)[at + 1]
        if begin < 0 or end < begin or end > self._data.len:
            return False
        field.data = <const char*>self._data.buf + begin
        field.size = end - begin
        return True


cdef class StampSource:
    # Timestamps: one for all rows, or a column.
    cdef Py_buffer _column
    cdef bint _held
    cdef int64_t _constant

    def __cinit__(self):
        self._held = False

    def __init__(self, column, constant, int64_t rows):
        if column is None:
            self._constant = _milliseconds(constant)
            return
        PyObject_GetBuffer(column, &self._column, PyBUF_SIMPLE)
        self._held = True
        if rows > self._column.len // 8:
            raise bad_column(0)

    def __dealloc__(self):
        if self._held:
            PyBuffer_Release(&self._column)

    cdef inline int64_t look(self, int64_t row) noexcept:
        return (<const int64_t*>self._column.buf)[row] if self._held else self._constant
