# cython: language_level=3
"""C types of pointers.py."""

ctypedef unsigned char *Bytes
ctypedef int *Ints
ctypedef long long *Longs
ctypedef unsigned long long *Hashes

cdef void *_address_of(object array, Py_ssize_t width, bint writable) except? NULL

cdef inline Bytes bytes_of(object array) except? NULL:
    return <Bytes>_address_of(array, 1, False)

cdef inline Bytes new_bytes(object array) except? NULL:
    return <Bytes>_address_of(array, 1, True)

cdef inline Ints ints_of(object array) except? NULL:
    return <Ints>_address_of(array, 4, False)

cdef inline Ints new_ints(object array) except? NULL:
    return <Ints>_address_of(array, 4, True)

cdef inline Longs longs_of(object array) except? NULL:
    return <Longs>_address_of(array, 8, False)

cdef inline Longs new_longs(object array) except? NULL:
    return <Longs>_address_of(array, 8, True)

cdef inline Hashes hashes_of(object array) except? NULL:
    return <Hashes>_address_of(array, 8, False)

cdef inline Hashes new_hashes(object array) except? NULL:
    return <Hashes>_address_of(array, 8, True)
