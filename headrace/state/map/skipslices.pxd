# cython: language_level=3
"""C types of skipslices.py."""

from headrace.state.map.skiptypes cimport Handles, Hit, Node, Slice, Value

cdef class Batch:
    cdef list items
    cdef Slice *slices
    cdef size_t count


cdef class Run:
    cdef Slice *slices
    cdef size_t count


cdef class Found:
    cdef unsigned int *handles
    cdef Node **nodes


cdef class Flight:
    cdef long long txid
    cdef Handles handles


cdef class Page:
    cdef unsigned char *data
    cdef size_t used
    cdef size_t capacity
    cdef size_t count

    cdef bint add(self, Node *node, Value *value) noexcept nogil
    cdef bint full(self) noexcept nogil
    cdef tuple lists(self)
    cdef tuple packed(self)


cdef class Hits:
    cdef Hit *data
    cdef size_t count
    cdef size_t capacity
    cdef list objects

    cdef bint add(self, size_t position, const unsigned char *data, size_t length, long long weight) noexcept nogil
    cdef int add_object(self, size_t position, bytes data, long long weight) except -1
    cdef tuple values(self, size_t count)
    cdef tuple rows(self, size_t count)


cdef bytes value_bytes(Value *value)
cdef bytes key_bytes(Node *node, size_t skipped)
