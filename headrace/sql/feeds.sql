-- Subscribers: how far each has come.  Its owner moves it himself, in a transaction of his own.
CREATE TABLE IF NOT EXISTS headrace.feeds (
    name       text PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 63),
    history_id bigint NOT NULL REFERENCES headrace.histories ON DELETE CASCADE,
    owner      oid NOT NULL DEFAULT pg_catalog.to_regrole(pg_catalog.quote_ident(current_user))::oid,
    txid       bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT pg_catalog.now()
);
CREATE INDEX IF NOT EXISTS feeds_history_id ON headrace.feeds (history_id);
