-- Feeds: the position of each subscriber.  The owner of a feed moves it in a transaction of his own.
-- No foreign key: the owner's open transaction would block a resync or drop of the view.
-- No right to DELETE, because that right allows to lock the table.  A feed without a name or without a history is
-- dropped; the janitor deletes its row.
CREATE TABLE IF NOT EXISTS headrace.feeds (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name       text CHECK (length(name) BETWEEN 1 AND 63),
    history_id bigint NOT NULL,
    owner      oid NOT NULL DEFAULT pg_catalog.to_regrole(pg_catalog.quote_ident(current_user))::oid,
    txid       bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT pg_catalog.now(),
    UNIQUE (owner, name)
);
