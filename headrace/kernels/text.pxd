# cython: language_level=3
"""C types of text.py."""

cdef enum:  # the values of text.Form
    STRING = 0
    INTEGER = 1
    BOOLEAN = 2
    CALENDAR = 3
    FLOAT = 4

cdef bint read_int(
    const unsigned char *data, Py_ssize_t p, Py_ssize_t end, long long low, long long high,
    long long *out, Py_ssize_t i
) noexcept nogil
