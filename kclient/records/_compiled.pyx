# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False, annotation_typing=False
"""The compiled implementation: everything that runs once per record.

`_interpreted.py` is its twin in Python and its specification: same names, same bytes, same errors. What runs once
per batch (headers, checksums, compression) is shared, in Python. Exceptions are made by the shared modules too.

Every read from a payload is bounded by the payload's length and nothing that was read is read again without
being checked again, so bytes that change underneath cannot lead out of the buffer.
"""

cimport cython
from cpython.buffer cimport PyBUF_FORMAT, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_CheckExact, PyList_GET_SIZE
from cpython.long cimport PyLong_CheckExact
from cpython.object cimport PyObject, PyTypeObject
from cpython.pythread cimport (
    NOWAIT_LOCK,
    WAIT_LOCK,
    PyThread_acquire_lock,
    PyThread_allocate_lock,
    PyThread_free_lock,
    PyThread_get_thread_ident,
    PyThread_release_lock,
    PyThread_type_lock,
)
from cpython.tuple cimport PyTuple_CheckExact, PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8String, PyUnicode_CheckExact, PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy

from array import array
from secrets import token_bytes

from kclient.records.arguments import (
    MAX_BATCH_SIZE,
    as_buffer,
    as_bytes,
    bad_timestamp,
    check_builder,
    check_delete_horizon,
    check_enough,
    check_handle,
    check_last_delta,
    check_limit,
    check_offset_delta,
    check_partition,
    check_partitions,
    check_record,
    check_stamps,
    check_start,
    check_topic,
    header_key,
    header_list,
    header_pair,
    integer,
    milliseconds,
    negative_timestamp,
    partition_or_none,
)
from kclient.records.column_arguments import check_columns, check_destinations, check_many, check_source
from kclient.records.refusals import (
    bad_column,
    builder_busy,
    builder_closed,
    builder_empty,
    columns_too_large,
    record_too_large,
)
from kclient.reentry import reentered
from kclient.records.batch_header import (
    HEADER_SIZE,
    CompressionType,
    attributes_of,
    check_count,
    write_header,
)
from kclient.records.compression import check_compression, check_level, compress
from kclient.records.contract import Appended, Columns, Survivors
from kclient.records.corruption import deserialization_error, record_error
from kclient.records.envelope_layout import check_first, check_layout, check_numbers, check_target, not_there
from kclient.records.restoring import restore_record
from kclient.records.signatures import TwinSignature
from kclient.types import TimestampType

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1

cdef extern from *:
    """
    #include <stdint.h>
    #include <time.h>
    #ifdef _WIN32
    #include <windows.h>
    #endif
    /* Milliseconds since the epoch; 0 if the system does not tell. */
    static inline int64_t kclient_now(void) {
    #ifdef _WIN32
        FILETIME time;
        GetSystemTimePreciseAsFileTime(&time);
        return (int64_t)((((uint64_t)time.dwHighDateTime << 32) | time.dwLowDateTime) / 10000) - 11644473600000LL;
    #else
        struct timespec time;
        if (clock_gettime(CLOCK_REALTIME, &time))
            return 0;
        return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
    #endif
    }
    /* Bytes of an unsigned varint. */
    static inline int kclient_varint_size(uint64_t value) {
    #if defined(__GNUC__)
        return (70 - __builtin_clzll(value | 1)) / 7;
    #else
        int size = 1;
        while (value > 0x7F) { value >>= 7; size++; }
        return size;
    #endif
    }
    """
    int64_t kclient_now() noexcept nogil
    int kclient_varint_size(uint64_t value) noexcept nogil


cdef enum:
    HEADER_BYTES = 61
    FIRST_CAPACITY = 1024
    MIN_RECORD_BYTES = 7
    # What is read in front of a key without looking, at most: four numbers of three bytes, and the attributes.
    PLAIN_BYTES = 13
    # Below this much work another thread would hardly start before the GIL is wanted back.
    RELEASE_GIL_BYTES = 65536
    # What one call of `append_rows` takes at most: which batch a row is in has to fit into a byte.
    MOST_ROWS = 16384
    MOST_BATCHES = 256


# The numbers of `kclient.records.corruption.Corruption`.
cdef enum:
    CORRUPT_NONE = 0
    CORRUPT_TRUNCATED = 1
    CORRUPT_VARINT = 2
    CORRUPT_RECORD_LENGTH = 3
    CORRUPT_TIMESTAMP = 4
    CORRUPT_OFFSET_DELTA = 5
    CORRUPT_KEY_LENGTH = 6
    CORRUPT_VALUE_LENGTH = 7
    CORRUPT_HEADER_COUNT = 8
    CORRUPT_HEADER_KEY_LENGTH = 9
    CORRUPT_HEADER_VALUE_LENGTH = 10
    CORRUPT_RECORD_REMAINDER = 11
    CORRUPT_BATCH_REMAINDER = 12
    NEEDS_ROOM = 13  # no corruption: what is read next does not fit


cdef int64_t _MAX_BATCH_SIZE = MAX_BATCH_SIZE
cdef tuple _NO_ARGUMENTS = ()
cdef object _NO_COMPRESSION = CompressionType.NONE
cdef object _CREATE_TIME = TimestampType.CREATE_TIME
cdef object _LOG_APPEND_TIME = TimestampType.LOG_APPEND_TIME


include "_cython/numbers.pxi"
include "_cython/record.pxi"
include "_cython/builder.pxi"
include "_cython/sources.pxi"
include "_cython/appender.pxi"
include "_cython/reading.pxi"
include "_cython/columns.pxi"
include "_cython/scanning.pxi"
include "_cython/hashing.pxi"
include "_cython/envelopes.pxi"
include "_cython/compaction.pxi"
