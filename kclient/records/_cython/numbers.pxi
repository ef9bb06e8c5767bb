# Arguments that are numbers: what is as it should be is read here, the rest is complained about in Python.

cdef inline int64_t _integer(str name, object value, int64_t least, int64_t greatest) except? -1:
    cdef int overflow = 0
    cdef int64_t number
    if PyLong_CheckExact(value):
        number = PyLong_AsLongLongAndOverflow(value, &overflow)
        if overflow == 0 and least <= number <= greatest:
            return number
    return integer(name, value, least, greatest)


cdef inline int64_t _milliseconds(object timestamp) except? -1:
    cdef int overflow = 0
    cdef int64_t number
    if PyLong_CheckExact(timestamp):
        number = PyLong_AsLongLongAndOverflow(timestamp, &overflow)
        if overflow == 0 and number >= -1:
            return number
    return milliseconds(timestamp)
