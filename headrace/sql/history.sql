-- The changes of each txid that has changed a view with a history: one row, or several parts of a
-- megabyte each, written in the transaction that changes the view's table.
-- net: only for assertions: number of rows by which the part makes the table longer.  first_at, transactions, xids: commit
-- time of the first transaction, number of the transactions, and the XIDs of the first of them.  requests: the id of the request that each of these
-- belongs to, if a transaction named any (pg_logical_emit_message with prefix headrace).
CREATE TABLE IF NOT EXISTS headrace.history (
    history_id bigint NOT NULL REFERENCES headrace.histories ON DELETE CASCADE,
    txid       bigint NOT NULL,
    part       int NOT NULL,
    lsn        pg_lsn NOT NULL,
    commit_at  timestamptz NOT NULL,
    row_count  int NOT NULL,
    weights    bigint[] NOT NULL,
    data       text[] NOT NULL,
    net        bigint,
    first_at   timestamptz,
    transactions int,
    xids       bigint[],
    requests   text[],
    PRIMARY KEY (history_id, txid, part)
);
