# cython: language_level=3
"""C types of arena.py: how blocks are found behind their handles."""

cdef struct Slab:
    size_t offset  # in the file, if there is one
    size_t size  # of a large block, else 0
    unsigned int next  # in the list of slabs with room (or of free slabs); 0: none
    unsigned int previous
    unsigned int free  # first free block: its unit + 1; 0: none
    unsigned int bump  # first unit never used
    unsigned int live  # blocks in use
    unsigned int zone
    unsigned int kind  # index of its block size
    bint listed  # is in the list of slabs with room


cdef struct Segment:
    void *data
    size_t size


cdef class Arena:
    cdef unsigned char **bases
    cdef Slab *slabs
    cdef Segment *segments
    cdef unsigned int *room
    cdef unsigned char *kinds
    cdef unsigned int *sizes
    cdef unsigned int shift
    cdef unsigned int mask
    cdef unsigned int units
    cdef unsigned int kind_count
    cdef size_t slab_bytes
    cdef size_t block_bytes_max
    cdef size_t slab_count
    cdef size_t slab_capacity
    cdef size_t segment_count
    cdef size_t segment_capacity
    cdef unsigned int unused  # first unused slab of a segment
    cdef unsigned int spare  # first unused entry for a large block
    cdef unsigned int zone_count
    cdef int descriptor
    cdef size_t file_bytes
    cdef readonly size_t live_bytes
    cdef readonly size_t mapped_bytes
    cdef readonly size_t blocks
    cdef object file

    cdef unsigned int alloc(self, unsigned int zone, size_t size) noexcept nogil
    cdef void free(self, unsigned int handle) noexcept nogil
    cdef bint fits(self, unsigned int handle, size_t size) noexcept nogil
    cdef size_t block_bytes(self, unsigned int handle) noexcept nogil
    cdef bint split(self, unsigned int zones) noexcept nogil
    cdef unsigned int _new_slab(self, unsigned int zone, unsigned int kind) noexcept nogil
    cdef unsigned int _new_entry(self) noexcept nogil
    cdef bint _map(self) noexcept nogil
    cdef unsigned int _alloc_large(self, size_t size) noexcept nogil
    cdef void _free_large(self, unsigned int number) noexcept nogil
    cdef void _list(self, unsigned int number) noexcept nogil
    cdef void _unlist(self, unsigned int number) noexcept nogil
    cdef void _give_back(self, unsigned int number) noexcept nogil
    cdef void _touch(self, size_t before, size_t after) noexcept nogil


cdef inline unsigned char *block(unsigned char **bases, unsigned int shift, unsigned int mask, unsigned int handle) noexcept nogil:
    """``at`` for loops: with the arena's fields in registers."""
    return bases[handle >> shift] + ((<size_t> (handle & mask)) << 3)


cdef inline unsigned char *at(Arena arena, unsigned int handle) noexcept nogil:
    """The bytes of a block."""
    return arena.bases[handle >> arena.shift] + ((<size_t> (handle & arena.mask)) << 3)
