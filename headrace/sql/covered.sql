-- Positions up to which views with a history are complete, beyond their last change.  The worker writes a row only
-- while a session waits for the view (await_history.sql).
-- lsn: everything committed before it is in the view's table.  at: so is everything committed before that time.
-- A resync replaces the view's row of headrace.progress, and this row is deleted with the old one.
CREATE TABLE IF NOT EXISTS headrace.covered (
    view_id bigint PRIMARY KEY REFERENCES headrace.progress ON DELETE CASCADE,
    lsn     pg_lsn NOT NULL,
    at      timestamptz
);
