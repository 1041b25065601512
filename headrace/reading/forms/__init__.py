"""The allowlist of constructs that have an exact equivalent in Postgres, by dialect.

Each module has the rules for one family of constructs.  A construct without a rule is refused.
"""
