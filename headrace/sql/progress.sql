-- Progress of each result table; it changes in the same transaction as the table's rows.
CREATE TABLE IF NOT EXISTS headrace.progress (
    view_id          bigint PRIMARY KEY REFERENCES headrace.views ON DELETE CASCADE,
    epoch            bigint NOT NULL DEFAULT 0,
    txid             bigint NOT NULL DEFAULT 0,
    attempt          int NOT NULL DEFAULT 0,
    lsn              pg_lsn,
    source_commit_at timestamptz,
    applied_at       timestamptz
) WITH (fillfactor = 50);
