# cython: language_level=3
"""C types of skiplist.py."""

from headrace.state.map.skipslices cimport Page
from headrace.state.map.skiptypes cimport Handles
from headrace.state.map.skipsnapshots cimport Snapshots

cdef class SkipList(Snapshots):
    cdef double ratio
    cdef list flights
    cdef Handles changing  # changes of the checkpoint being written
    cdef Handles held  # nodes to prune after the checkpoint
    cdef Handles cleaning  # nodes to prune or remove by ``clean`` …
    cdef size_t cleaned  # … from this position on
    cdef object released

    cdef int _rerun(self) except? -1
    cdef int _end(self, object snapshot) except? -1
    cdef long long _first_flight(self) except? -1
    cdef int _append_cleaning(self, Handles *handles) except? -1
    cdef int _forget(self) except? -1
    cdef tuple _changes(self, long long snapshot, size_t position)
    cdef void _delete_removed(self, Py_ssize_t excess) noexcept nogil
    cdef int _copy_changes(self, long long snapshot, size_t *position, Page page) noexcept nogil
    cdef void _commit(self, Handles *handles, bint holding) noexcept nogil
    cdef void _undo(self, Handles *handles) noexcept nogil
    cdef void _clean(self, size_t count) noexcept nogil
