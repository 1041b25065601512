-- The workers besides the one that reads and writes.  Written by the engine only.
-- Of a worker on another machine: what it proves itself by (token: SHA-256 of the token's secret), and what it has
-- said of itself since (join_worker). latency_ms, bytes_per_s: what somebody has said of the link to it (add_link);
-- NULL: what is measured counts. capacity: how many collections strategies may place there. lost_at: since when it
-- counts as lost for good, so that nothing is placed there; NULL: it does not.
CREATE TABLE IF NOT EXISTS headrace.nodes (
    name        text PRIMARY KEY CHECK (name ~ '^[a-z][a-z0-9_]{0,19}$' AND name <> 'main'),
    added_at    timestamptz NOT NULL DEFAULT pg_catalog.now(),
    token       bytea,
    address     text,
    certificate text,
    seen_at     timestamptz,
    latency_ms  bigint,
    bytes_per_s bigint,
    capacity    integer NOT NULL DEFAULT 100,
    lost_at     timestamptz
);
