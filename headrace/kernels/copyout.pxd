# cython: language_level=3
"""C types of copyout.py: the two functions of libpq that it calls by their addresses."""

ctypedef int (*Get)(void *connection, char **message, int nowait) noexcept nogil
ctypedef void (*Free)(void *message) noexcept nogil
