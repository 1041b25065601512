# cython: language_level=3
"""C types of key_codec.py."""

from headrace.kernels.arrow_memory cimport Column

cdef struct KeyColumn:
    Column column
    int form  # how its values are written, see key_codec.py
    const unsigned char *content  # of READY columns
    const long long *starts  # of READY columns
