"""Typed scalar expressions compiled to Arrow kernels or evaluated by Postgres."""
