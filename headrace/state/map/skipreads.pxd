# cython: language_level=3
"""C types of skipreads.py."""

from headrace.state.map.skipnodes cimport Nodes
from headrace.state.map.skiptypes cimport Node, Slice, Value
from headrace.state.map.skipslices cimport Batch, Hits

cdef class Reads(Nodes):
    cdef bint closed

    cdef int _under(self, Slice *prefixes, size_t start, size_t end, unsigned int *firsts, Hits hits) noexcept nogil
    cdef int _scan_run(self, Batch batch, size_t start, size_t end, list positions, list rows, list weights) except? -1
    cdef int _scan_over(self, Batch batch, size_t position, object base, list positions, list rows, list weights) except? -1
    cdef int _first_merged(self, unsigned int handle, Batch batch, size_t position, long long left, object base, list positions, list rows, list weights) except? -1
    cdef Node *_first(self, unsigned int handle, Slice prefix) noexcept nogil
    cdef tuple _page(self, bytes start, int stop_group)
    cdef tuple _page_over(self, bytes start, int stop_group, object base)
    cdef unsigned int _handle(self, bytes key)


cdef int is_open(Reads map) except? -1
cdef long long weight_of(Value *value) except? -1
cdef Batch prefixes_of(object prefixes)
