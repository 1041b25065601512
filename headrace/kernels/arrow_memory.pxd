# cython: language_level=3
"""C types of arrow_memory.py."""

cdef struct ArrowArray:  # Arrow's C data interface
    long long length
    long long null_count
    long long offset
    long long n_buffers
    long long n_children
    const void **buffers
    ArrowArray **children
    ArrowArray *dictionary
    void (*release)(ArrowArray *) noexcept nogil
    void *private_data

cdef enum:  # how a value is stored, see KINDS
    FIXED = 0
    TEXT = 1
    BOOL = 2
    FLOAT4 = 3
    FLOAT8 = 4

cdef struct Column:
    int kind
    int width  # bytes of a value; 0 for texts
    long long offset  # of the first row, in bits, for the bitmaps
    const unsigned char *valid  # bitmap; NULL: no row is NULL
    const unsigned char *values  # bytes of texts; bitmap of bools; otherwise the first row's value
    const int *offsets  # of texts, from the first row's on

cdef struct Building:
    int kind
    int width
    long long nulls
    long long size  # bytes of all texts
    unsigned char *valid  # bitmap; NULL: no row is NULL
    unsigned char *values
    int *offsets

cdef class Layout:
    cdef readonly object schema
    cdef object alike  # the last schema of the same types with other names
    cdef readonly list types
    cdef Py_ssize_t count
    cdef int *kinds
    cdef int *widths

cdef int load(Column *to, object array) except -1
cdef int load_child(Column *to, ArrowArray *array, int kind, int width) except -1
cdef int allocate(Building *to, ArrowArray *array, Py_ssize_t rows) except -1
cdef int allocate_batch(ArrowArray *batch, Py_ssize_t rows, Py_ssize_t columns) except -1

cdef inline int bit(const unsigned char *bitmap, long long at) noexcept nogil:
    return (bitmap[at >> 3] >> (at & 7)) & 1

cdef inline bint is_null(const Column *column, Py_ssize_t row) noexcept nogil:
    return column.valid != NULL and not bit(column.valid, column.offset + row)
