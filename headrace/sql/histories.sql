-- Views whose changes are kept, for how long, and from where on.  Written by the engine only.
-- The txid of a change is never used again for this view: it is that of headrace.progress plus shift,
-- which grows when a resync sets the view back to an earlier txid, or its numbers begin again.
-- first_txid: all changes after it are here; NULL: the worker has not begun.
CREATE TABLE IF NOT EXISTS headrace.histories (
    id         bigserial PRIMARY KEY,
    view_id    bigint NOT NULL UNIQUE REFERENCES headrace.views ON UPDATE CASCADE ON DELETE CASCADE,
    result_oid oid NOT NULL UNIQUE,
    keep       interval NOT NULL,
    shift      bigint NOT NULL DEFAULT 0,
    first_txid bigint,
    first_lsn  pg_lsn,
    first_at   timestamptz
);
