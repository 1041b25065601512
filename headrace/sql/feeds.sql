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
-- Whether a role may have one more. A volatile function sees the rows that its own statement has inserted.
-- Dropped feeds count until the janitor has deleted them.
CREATE OR REPLACE FUNCTION headrace.has_room_for_feed(role oid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (SELECT count(*) FROM headrace.feeds f WHERE f.owner = role) < 1000;
END
$$;
