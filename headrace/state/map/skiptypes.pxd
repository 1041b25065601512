# cython: language_level=3
"""What the state map is made of in memory: structs, and the steps between them."""

from headrace.state.map.arena cimport Arena, at
from libc.string cimport memcmp, memcpy

cdef extern from *:
    void __builtin_prefetch(const void *address) noexcept nogil

cdef extern from "<endian.h>":
    unsigned long long be64toh(unsigned long long number) noexcept nogil

cdef enum:
    HEIGHT_MAX = 16
    BYTES_MAX = 268435455  # of a key or a value: 28 bits
    REMOVED = 268435456  # flags in the rest of Value.length
    NEGATIVE = 536870912
    HELD = 1  # flag of Node.marks: in the list of nodes to prune after the checkpoint
    SPILLED = 0  # residency of a group
    LOADING = 1
    RESIDENT = 2
    SLICE_KEYS = 128  # processed before the mutex is released
    BLOCK_KEYS = 1024  # sought together before they are written
    CHUNK_ENTRIES = 4096
    CHUNK_BYTES = 8388608
    DONE = 0  # result codes of loops without the interpreter lock
    NO_MEMORY = -1
    NO_WEIGHT = -2
    OVERFLOW = -3
    NOT_RUNNING = -4

cdef struct Node:
    unsigned int key_length
    unsigned int value  # handle of the newest
    unsigned int epoch  # of the list of changes that it is in
    unsigned short listed  # number of lists that it is in: it is removed only at 0
    unsigned char height
    unsigned char marks
    # Then `height` handles (the next node per level), then the key.

cdef struct Value:
    long long version
    unsigned int older  # handle; 0: none
    unsigned int length  # and flags
    # Then the bytes.

cdef struct Slice:
    const unsigned char *data  # NULL: None
    size_t length

cdef struct Path:
    Node *at[16]  # per level the last node before a key

cdef struct Handles:
    unsigned int *data
    size_t count
    size_t capacity

cdef struct Lane:  # one of several interleaved searches
    Path path
    size_t position  # of the sought key
    size_t end
    Node *node  # position of the search …
    int level
    unsigned int following  # … and the node that it visits next
    unsigned int stop  # a node known to be at or above the key …
    bint equal  # … and whether it is the key's

cdef struct Hit:  # an entry that a read found
    size_t position  # of its key in the batch
    const unsigned char *data  # the rest of the key, or the value
    size_t length
    long long weight
    bint removed

cdef struct Head:  # of a key being sorted
    unsigned long long first  # bytes that decide most comparisons
    unsigned int position

ctypedef Node *NodeRef
ctypedef Node **NodeRefs
ctypedef Value *ValueRef
ctypedef Slice *SliceRef
ctypedef Path *PathRef
ctypedef Handles *HandlesRef
ctypedef Hit *HitRef
ctypedef Head *HeadRef
ctypedef Lane *LaneRef
ctypedef const unsigned char *Bytes
ctypedef long long *Integers
ctypedef unsigned int *Numbers


cdef inline Node *node_at(Arena arena, unsigned int handle) noexcept nogil:
    return <Node *> at(arena, handle)


cdef inline Value *value_at(Arena arena, unsigned int handle) noexcept nogil:
    return <Value *> at(arena, handle)


cdef inline Value *newest(Arena arena, Node *node) noexcept nogil:
    """The newest value: every node has one."""
    return <Value *> at(arena, node.value)


cdef inline unsigned int *links(Node *node) noexcept nogil:
    """Per level the next node."""
    return <unsigned int *> (node + 1)


cdef inline unsigned char *key_of(Node *node) noexcept nogil:
    return (<unsigned char *> (node + 1)) + ((<size_t> node.height) << 2)


cdef inline unsigned int group_of(Slice key) noexcept nogil:
    """The key group: the first byte."""
    return key.data[0] if key.length else 0


cdef inline unsigned int group_of_node(Node *node) noexcept nogil:
    return key_of(node)[0] if node.key_length else 0


cdef inline unsigned char *bytes_of(Value *value) noexcept nogil:
    return <unsigned char *> (value + 1)


cdef inline size_t size_of(Value *value) noexcept nogil:
    return value.length & BYTES_MAX


cdef inline bint is_removed(Value *value) noexcept nogil:
    return value.length & REMOVED != 0


cdef inline int compare(Node *node, Slice key) noexcept nogil:
    """Below, at or above 0 as the node's key is below, at or above ``key``."""
    cdef size_t own = node.key_length
    cdef size_t length = own if own < key.length else key.length
    cdef unsigned char *mine = key_of(node)
    cdef unsigned long long left, right
    cdef size_t i = 0
    cdef int order
    if length >= 8:
        while True:
            memcpy(&left, mine + i, 8)
            memcpy(&right, key.data + i, 8)
            if left != right:
                return -1 if be64toh(left) < be64toh(right) else 1
            if i + 8 == length:
                break
            i = i + 8 if i + 16 <= length else length - 8  # the last eight overlap
    else:
        order = memcmp(mine, key.data, length)
        if order:
            return order
    return (own > key.length) - (own < key.length)


cdef inline bint starts(Node *node, Slice prefix) noexcept nogil:
    """Whether the node's key starts with the prefix."""
    return node.key_length >= prefix.length and memcmp(key_of(node), prefix.data, prefix.length) == 0


cdef inline void prefetch(const void *address) noexcept nogil:
    """Ask for the cache lines of a node or value that will be needed soon."""
    __builtin_prefetch(address)
    __builtin_prefetch(<const unsigned char *> address + 63)
