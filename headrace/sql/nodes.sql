-- The workers other than main.  Written by the engine only.
-- Of a worker on another machine: token, the SHA-256 of its token's secret, and what it reported when it joined
-- (join_worker). latency_ms, bytes_per_s: stated properties of the link to it (add_link); NULL: the measured values
-- count. capacity: how many collections strategies may place there. lost_at: since when it is considered lost for good,
-- so that nothing is placed there; NULL: it is not lost.
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
