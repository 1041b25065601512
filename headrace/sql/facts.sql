-- What the engine tells of itself, for status(): written by the commander when it changes.  For members of
-- its role.
CREATE TABLE IF NOT EXISTS headrace.facts (
    fact  text PRIMARY KEY,
    value text NOT NULL,
    ok    boolean,
    hint  text,
    at    timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
