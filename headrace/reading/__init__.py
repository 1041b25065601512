"""A query's text as sqlglot reads it; sqlglot itself is imported in a process of its own."""
