-- Moves a feed to a txid that was read.  It runs in the subscriber's transaction, so that the position and the
-- subscriber's own writes are committed together.
CREATE OR REPLACE PROCEDURE headrace.feed_ack(name text, txid bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off SET row_security = on
AS $$
#variable_conflict use_column
DECLARE
    feed headrace.feeds;
    kept headrace.histories;
    last bigint;
BEGIN
    feed := headrace.feed_of(feed_ack.name);
    SELECT h.* INTO kept FROM headrace.histories h WHERE h.id = feed.history_id;
    SELECT p.txid + kept.shift INTO last FROM headrace.progress p WHERE p.view_id = kept.view_id;
    IF feed_ack.txid BETWEEN feed.txid AND last THEN
        UPDATE headrace.feeds f SET txid = feed_ack.txid WHERE f.id = feed.id AND f.txid <= feed_ack.txid;
        RETURN;
    END IF;
    RAISE EXCEPTION USING ERRCODE = '22023',
        MESSAGE = format('feed "%s" cannot move to txid %s', feed_ack.name, coalesce(feed_ack.txid::text, 'NULL')),
        DETAIL = format('It is at txid %s, its view at %s.', feed.txid, last);
END
$$;
