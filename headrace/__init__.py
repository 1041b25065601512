"""Headrace keeps the results of SQL queries fresh, as ordinary tables, inside your Postgres."""
