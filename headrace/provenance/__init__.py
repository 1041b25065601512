"""Rows of tables from which a result row follows, and operators that drop rows."""
