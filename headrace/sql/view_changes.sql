-- Returns the changes of a view after txid `since`, in order; 0: all that are kept.  weight: number of rows added, or
-- removed if negative; data: the row as text of the view's row type, (data::v).* are its columns.
-- Each txid is visible whole or not at all, and in ascending order: its changes become visible in the transaction
-- that moves the view's progress to it.
-- STABLE: all its queries have one snapshot.
CREATE OR REPLACE FUNCTION headrace.view_changes(view regclass, since bigint DEFAULT 0)
RETURNS TABLE (txid bigint, lsn pg_lsn, commit_at timestamptz, weight bigint, data text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off SET row_security = on
AS $$
#variable_conflict use_column
DECLARE
    kept headrace.histories;
    last bigint;
BEGIN
    kept := headrace.history_of(view);
    last := headrace.view_txid(view);
    IF since IS NULL OR since > last OR since <> 0 AND since < kept.first_txid THEN
        PERFORM headrace.history_lost(view, format('txid %s', coalesce(since::text, 'NULL')), last);
    END IF;
    RETURN QUERY
        SELECT c.txid, c.lsn, c.commit_at, r.weight, r.data
          FROM headrace.history c
         CROSS JOIN LATERAL unnest(c.weights, c.data) WITH ORDINALITY AS r (weight, data, place)
         WHERE c.history_id = kept.id AND c.txid > greatest(since, kept.first_txid)
         ORDER BY c.txid, c.part, r.place;
END
$$;
