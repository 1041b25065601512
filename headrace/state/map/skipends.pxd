# cython: language_level=3
"""C types of skipends.py."""

from headrace.state.map.skipreads cimport Reads
from headrace.state.map.skiptypes cimport Node, Path, Slice

cdef class Ends(Reads):
    cdef bint _is_entry(self, Node *node, Slice prefix) noexcept nogil
    cdef Node *_last(self, Path *path, Slice prefix, Slice end) noexcept nogil
    cdef void _seek_end(self, Path *path) noexcept nogil
    cdef object _first_over(self, bytes prefix, object mine, object base)
    cdef object _last_over(self, bytes prefix, object end, object mine, object base)
    cdef bint _is_removed(self, bytes key)


cdef class PrefixEnds:
    cdef Slice *slices
    cdef unsigned char *data
