-- Subscribers: how far each has come.  Its owner moves it himself, in a transaction of his own.
-- No foreign key: an open transaction of his would hold up whoever fills the view anew, or drops it.
-- No right to DELETE: who may do that may lock the table.  A feed without a name is gone, and so is one
-- without a history; the janitor takes them away.
CREATE TABLE IF NOT EXISTS headrace.feeds (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name       text CHECK (length(name) BETWEEN 1 AND 63),
    history_id bigint NOT NULL,
    owner      oid NOT NULL DEFAULT pg_catalog.to_regrole(pg_catalog.quote_ident(current_user))::oid,
    txid       bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT pg_catalog.now(),
    UNIQUE (owner, name)
);
