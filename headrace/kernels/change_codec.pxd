# cython: language_level=3
"""C types of change_codec.py."""

cdef struct Wanted:
    Py_ssize_t place  # of the column in the relation
    int form  # as in text.pxd; STRING for floats, which Arrow parses
    int kind  # as of Column in arrow_memory.pxd
    int width  # bytes of a value; 0 for texts
    int calendar  # as in datetimes.KINDS
    long long low  # least integer of the type
    long long high

cdef class Columns:
    cdef readonly tuple columns
    cdef readonly list floats
    cdef dict schemas
    cdef Py_ssize_t count
    cdef Wanted *wanted

cdef struct Texts:
    const unsigned char *data
    const long long *places
    const int *sizes
    Py_ssize_t rows
