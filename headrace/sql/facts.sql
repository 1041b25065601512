-- Facts about the engine, for status(); the commander writes them when they change.  Readable by members of the
-- engine's role.
CREATE TABLE IF NOT EXISTS headrace.facts (
    fact  text PRIMARY KEY,
    value text NOT NULL,
    ok    boolean,
    hint  text,
    at    timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
