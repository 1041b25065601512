# cython: language_level=3
"""C types of hashes.py."""

ctypedef unsigned long long Hash

cdef Hash fnv(const unsigned char *data, Py_ssize_t begin, Py_ssize_t end) noexcept nogil
cdef Hash fnv_copy(
    const unsigned char *data, Py_ssize_t begin, Py_ssize_t end, unsigned char *out, Py_ssize_t at
) noexcept nogil
cdef unsigned char group_of(Hash h) noexcept nogil
