# cython: language_level=3
"""C types of text.py."""

cdef bint read_int(
    const unsigned char *data, Py_ssize_t p, Py_ssize_t end, long long low, long long high,
    long long *out, Py_ssize_t i
) noexcept nogil
