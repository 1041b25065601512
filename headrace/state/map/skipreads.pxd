# cython: language_level=3
"""C types of skipreads.py."""

from headrace.state.map.skipkeys cimport Keys
from headrace.state.map.skipnodes cimport Nodes
from headrace.state.map.skiptypes cimport Node, Slice
from headrace.state.map.skipslices cimport Hits

cdef class Reads(Nodes):
    cdef bint closed

    cdef int _under(self, Keys keys, size_t start, size_t end, unsigned int *firsts, Hits hits, bint removed) noexcept nogil
    cdef int _add_hit(self, Hits hits, size_t position, Node *node, size_t skipped) noexcept nogil
    cdef int _scan_over(self, Keys keys, size_t i, object base, Hits out) except? -1
    cdef int _first_merged(self, unsigned int handle, Keys keys, size_t position, long long left, object base, Hits hits) except? -1
    cdef Node *_first(self, unsigned int handle, Slice prefix) noexcept nogil
    cdef tuple _page(self, bytes start, int stop_group)
    cdef tuple _page_over(self, bytes start, int stop_group, object base)
    cdef unsigned int _handle(self, bytes key)


cdef int is_open(Reads map) except? -1
cdef int check(int result) except? -1
cdef int have_groups(Keys keys) except? -1
