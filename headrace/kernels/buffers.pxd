# cython: language_level=3
"""C types of buffers.py."""

cdef void size_fixed(const unsigned char[::1] valid, long long[::1] sizes, Py_ssize_t width) noexcept
