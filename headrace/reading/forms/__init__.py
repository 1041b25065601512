"""The positive list: which construct of which dialect has which exact equal in Postgres.

Each module lists rules for one family of constructs.  A construct that no rule takes is refused.
"""
