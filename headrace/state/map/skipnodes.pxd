# cython: language_level=3
"""C types of skipnodes.py."""

cimport cython
from headrace.state.map.arena cimport Arena
from headrace.state.map.skiptypes cimport Handles, Node, Path, Slice, Value

cdef class Nodes:
    cdef Arena arena
    cdef Node *head
    cdef int top
    cdef unsigned long long random
    cdef size_t node_count
    cdef size_t removed_count
    cdef Py_ssize_t negative_count
    cdef bint txids
    cdef long long stamp  # version of the next write
    cdef long long base_txid  # the base is complete up to it
    cdef long long highest  # highest running snapshot; 0: none
    cdef long long finished_version
    cdef long long *snapshots  # running ones, ascending
    cdef size_t snapshot_count
    cdef size_t snapshot_capacity
    cdef unsigned int epoch
    cdef Handles changed
    cdef Handles *writing  # nodes that the current txid wrote
    cdef unsigned char where[256]
    cdef unsigned long long requests[256]
    cdef size_t bytes_per_group[256]
    cdef cython.pymutex mutex

    cdef void start(self, Path *path) noexcept nogil
    cdef void step(self, Path *path, Node *node) noexcept nogil
    cdef unsigned int seek(self, Path *path, Slice key) noexcept nogil
    cdef int write(self, Path *path, unsigned int handle, Slice key, const unsigned char *data, unsigned int length) noexcept nogil
    cdef int load_one(self, Path *path, Slice key, Slice value, long long committed) noexcept nogil
    cdef void remove(self, Path *path, unsigned int handle) noexcept nogil
    cdef void remove_useless(self, Path *path, unsigned int handle) noexcept nogil
    cdef Value *belonging(self, Node *node, long long snapshot) noexcept nogil
    cdef bint pop(self, Node *node) noexcept nogil
    cdef void prune(self, Node *node) noexcept nogil
    cdef void prune_finished(self, Node *node) noexcept nogil
    cdef void list_changed(self, unsigned int handle) noexcept nogil
    cdef bint runs(self, long long snapshot) noexcept nogil
    cdef int _create(self, Path *path, Slice key, const unsigned char *data, unsigned int length, long long version) noexcept nogil
    cdef void _unlink(self, Path *path, unsigned int handle) noexcept nogil
    cdef unsigned int _value(self, unsigned int group, const unsigned char *data, unsigned int length, long long version, unsigned int older) noexcept nogil
    cdef void _free_value(self, unsigned int group, unsigned int handle) noexcept nogil
    cdef void _cut(self, Node *node, Value *value) noexcept nogil
    cdef void _count(self, unsigned int flags, int by) noexcept nogil
    cdef unsigned int _height(self) noexcept nogil
    cdef unsigned int _zone(self, unsigned int group) noexcept nogil


cdef bint reserve(Handles *handles, size_t more) noexcept nogil
cdef void push(Handles *handles, unsigned int handle) noexcept nogil
