# cython: language_level=3
"""C types of array_literals.py."""

from headrace.kernels.arrow_memory cimport Layout

cdef struct Written:
    int form  # as in text.pxd
    int calendar  # as in datetimes.KINDS

cdef class Forms:
    cdef list oids
    cdef Layout layout
    cdef Py_ssize_t count
    cdef Written *written
