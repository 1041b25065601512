# cython: language_level=3
"""C types of skipkeys.py."""

from headrace.state.map.skiptypes cimport Head, Slice

cdef class Keys:
    cdef Slice *given  # by the caller's position
    cdef size_t *prefixes  # bytes of group and key, by the caller's position
    cdef Slice *slices  # ascending
    cdef unsigned int *order  # caller's position of each slice
    cdef size_t count
    cdef unsigned char *data

    cdef void _sort(self, Head *heads, Head *spare) noexcept nogil
    cdef bytes prefix(self, size_t position)
