# cython: language_level=3
"""C types of skipseek.py."""

from headrace.state.map.skipnodes cimport Nodes
from headrace.state.map.skiptypes cimport Node, Slice

cdef void seek_many(Nodes map, Slice *keys, size_t count, unsigned int *handles, bint exact, Node **befores) noexcept nogil
