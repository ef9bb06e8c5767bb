# The hashes that give a key its partition.

cdef int32_t _murmur2(const uint8_t* data, Py_ssize_t size) noexcept nogil:
    cdef uint32_t m = 0x5BD1E995
    cdef uint32_t value = <uint32_t>0x9747B28C ^ <uint32_t>size
    cdef uint32_t k
    cdef Py_ssize_t at = 0
    cdef int shift = 0
    while size - at >= 4:
        k = (
            <uint32_t>data[at] | <uint32_t>data[at + 1] << 8
            | <uint32_t>data[at + 2] << 16 | <uint32_t>data[at + 3] << 24
        )
        k *= m
        k ^= k >> 24
        k *= m
        value *= m
        value ^= k
        at += 4
    if at < size:
        while at < size:
            value ^= <uint32_t>data[at] << shift
            shift += 8
            at += 1
        value *= m
    value ^= value >> 13
    value *= m
    value ^= value >> 15
    return <int32_t>value


cdef int32_t _hash(object data) except? -1:
    cdef Py_buffer view
    if PyBytes_CheckExact(data):
        return _murmur2(<const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
    data = as_bytes(data, "key", nullable=False)
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return _murmur2(<const uint8_t*>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


def murmur2(data: Buffer) -> int:
    """The 32-bit hash of Java's `Utils.murmur2`, signed.

    Raises:
        TypeError: The data are not bytes, bytearray or memoryview.
    """
    return _hash(data)


def fnv1a(data: Buffer) -> int:
    """FNV-1a with 32 bits; its absolute value where that is negative as a signed number, as Sarama has it.

    Raises:
        TypeError: The data are not bytes, bytearray or memoryview.
    """
    cdef const uint8_t[::1] view = as_bytes(data, "key", nullable=False)
    cdef uint32_t value = <uint32_t>0x811C9DC5
    cdef Py_ssize_t at
    for at in range(view.shape[0]):
        value = (value ^ view[at]) * <uint32_t>0x01000193
    return (0 - value if value > <uint32_t>0x7FFFFFFF else value)


def partition_for_key(key: Buffer, partitions: int) -> int:
    """The partition that Java's default partitioner gives a record with this (serialized) key.

    Raises:
        TypeError: The key is not bytes, bytearray or memoryview, or `partitions` no integer.
        ValueError: `partitions` is not positive, or beyond 31 bits.
    """
    cdef int32_t count = check_partitions(partitions)
    return (_hash(key) & 0x7FFFFFFF) % count
