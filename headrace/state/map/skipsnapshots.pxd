# cython: language_level=3
"""C types of skipsnapshots.py."""

from headrace.state.map.skipslices cimport Page
from headrace.state.map.skipwrites cimport Writes

cdef class Snapshots(Writes):
    cdef dict sizes  # running snapshot -> size when it was taken

    cdef int _is_running(self, object snapshot) except? -1
    cdef tuple _entries(self, long long snapshot, unsigned int position)
    cdef int _copy_entries(self, long long snapshot, unsigned int *position, Page page) noexcept nogil
