-- Up to where a view with a history is known to have everything, though nothing of it was written since: written by
-- the worker, and only for a view that somebody asks for (await_history.sql).
-- lsn: everything committed before it is in the view's table.  at: so is everything committed before that time.
-- A resync gives the view another row of headrace.progress, and this one goes with the old one.
CREATE TABLE IF NOT EXISTS headrace.covered (
    view_id bigint PRIMARY KEY REFERENCES headrace.progress ON DELETE CASCADE,
    lsn     pg_lsn NOT NULL,
    at      timestamptz
);
