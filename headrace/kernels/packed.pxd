# cython: language_level=3
"""C types of packed.py."""

cdef bint same(
    const unsigned char[::1] left, const long long[::1] left_bounds, Py_ssize_t i,
    const unsigned char[::1] right, const long long[::1] right_bounds, Py_ssize_t j
) noexcept

cdef int compare(
    const unsigned char[::1] left, Py_ssize_t left_begin, Py_ssize_t left_end,
    const unsigned char[::1] right, Py_ssize_t right_begin, Py_ssize_t right_end
) noexcept

cdef bint same_at(
    const unsigned char *left, const long long *left_bounds, Py_ssize_t i,
    const unsigned char *right, const long long *right_bounds, Py_ssize_t j
) noexcept

cdef int compare_at(
    const unsigned char *left, Py_ssize_t left_begin, Py_ssize_t left_end,
    const unsigned char *right, Py_ssize_t right_begin, Py_ssize_t right_end
) noexcept
