-- Returns the changes that a feed has not acknowledged, in whole txids until there are at least `max` rows.
-- A feed does not prevent a purge: lost changes are an error (22023), never a gap.
CREATE OR REPLACE FUNCTION headrace.feed_read(name text, max bigint DEFAULT 10000)
RETURNS TABLE (txid bigint, lsn pg_lsn, commit_at timestamptz, weight bigint, data text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off SET row_security = on
AS $$
#variable_conflict use_column
DECLARE
    feed  headrace.feeds;
    kept  headrace.histories;
    total bigint := 0;
    bound bigint;
    part  record;
BEGIN
    feed := headrace.feed_of(feed_read.name);
    SELECT h.* INTO kept FROM headrace.histories h WHERE h.id = feed.history_id;
    IF kept.id IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = format('permission denied for the view of feed "%s"', feed.name),
            DETAIL = 'Who may read a whole view may read its changes. The view, or its history, may also be gone.';
    END IF;
    IF feed.txid < kept.first_txid THEN
        PERFORM headrace.history_lost(kept.result_oid, format('txid %s, which feed "%s" has acknowledged', feed.txid, feed.name),
                                      headrace.view_txid(kept.result_oid));
    END IF;
    FOR part IN SELECT c.txid, c.row_count FROM headrace.history c
                 WHERE c.history_id = kept.id AND c.txid > feed.txid ORDER BY c.txid, c.part LOOP
        EXIT WHEN total >= feed_read.max;  -- of its txid, all is read below
        bound := part.txid;
        total := total + part.row_count;
    END LOOP;
    RETURN QUERY
        SELECT c.txid, c.lsn, c.commit_at, r.weight, r.data
          FROM headrace.history c
         CROSS JOIN LATERAL unnest(c.weights, c.data) WITH ORDINALITY AS r (weight, data, place)
         WHERE c.history_id = kept.id AND c.txid > feed.txid AND c.txid <= bound
         ORDER BY c.txid, c.part, r.place;
END
$$;
