# cython: language_level=3
"""What the state map is made of in memory: structs, and the steps between them."""

from headrace.kernels.arena cimport Arena, at

cdef enum:
    HEIGHT_MAX = 16
    BYTES_MAX = 268435455  # of a key or a value: 28 bits
    REMOVED = 268435456  # flags in the rest of Value.length
    NEGATIVE = 536870912
    HELD = 1  # flags of Node.marks: in the list of nodes to prune after the checkpoint …
    CLAIMED = 2  # … and somebody prunes it
    SPILLED = 0  # where a group is
    LOADING = 1
    RESIDENT = 2
    SLICE_KEYS = 128  # worked on without giving the mutex to somebody else
    CHUNK_ENTRIES = 4096
    CHUNK_BYTES = 8388608
    DONE = 0  # what a loop without the interpreter lock comes back with
    NO_MEMORY = -1
    NO_WEIGHT = -2
    OVERFLOW = -3
    NOT_RUNNING = -4

cdef struct Node:
    unsigned int key_length
    unsigned int value  # handle of the newest
    unsigned int epoch  # of the list of changes it stands in
    unsigned short listed  # in how many lists: it is not removed before 0
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

cdef struct Hit:
    size_t position
    Node *node
    Value *value

ctypedef Node *NodeRef
ctypedef Value *ValueRef
ctypedef Slice *SliceRef
ctypedef Path *PathRef
ctypedef Handles *HandlesRef
ctypedef Hit *HitRef
ctypedef const unsigned char *Bytes
ctypedef long long *Integers
ctypedef unsigned int *Handle_s
ctypedef unsigned char **Bases


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
