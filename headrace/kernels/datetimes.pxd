# cython: language_level=3
"""C types of datetimes.py."""

cdef bint read(
    const unsigned char *data, Py_ssize_t p, Py_ssize_t end, int kind,
    long long *out, Py_ssize_t i
) noexcept nogil

cdef Py_ssize_t write(
    unsigned char *content, Py_ssize_t p, long long value, int kind
) noexcept nogil
