# cython: language_level=3
"""C types of skipwrites.py."""

from headrace.state.map.skipends cimport Ends
from headrace.state.map.skipkeys cimport Keys
from headrace.state.map.skiptypes cimport Path, Slice

cdef class Writes(Ends):
    cdef long long committed_txid

    cdef int _writable(self) except? -1
    cdef int _reserve_writing(self, size_t count) except? -1
    cdef int _put(self, Keys batch, Slice *values) noexcept nogil
    cdef int _add(self, Keys batch, const long long[::1] deltas, Slice *bases) noexcept nogil
    cdef void _seek_block(self, Slice *keys, size_t count, unsigned int *handles) noexcept nogil
    cdef int _add_one(self, Path *path, unsigned int handle, Slice key, long long delta, Slice base) noexcept nogil
    cdef int _load_all(self, Slice *keys, Slice *values, size_t count) except -1
    cdef int _load(self, Slice *keys, Slice *values, size_t count) noexcept nogil
    cdef unsigned int _spill(self, Slice start, unsigned int group, size_t limit) noexcept nogil


cdef class Known:
    cdef Slice *bases
