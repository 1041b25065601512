-- Returns the rows of view_as_of(), once the history reaches so far: reads the view's present table with the caller's
-- rights, and undoes the changes after that txid.  STABLE: all its queries have one snapshot.
-- Rows are compared as texts, printed by their types' output functions under the settings here.
CREATE OR REPLACE FUNCTION headrace.rows_as_of(
    view anyelement, txid bigint, lsn pg_lsn, at timestamptz)
RETURNS SETOF anyelement
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off SET row_security = on
    SET "TimeZone" = 'UTC' SET "DateStyle" = 'ISO, YMD' SET "IntervalStyle" = 'postgres'
    SET extra_float_digits = 3 SET bytea_output = 'hex' SET lc_monetary = 'C' SET xmloption = 'content'
    SET array_nulls = on
AS $$
#variable_conflict use_column
DECLARE
    named  regclass;
    kept   headrace.histories;
    moved  headrace.progress;
    known  headrace.covered;
    wanted text;
    bound  bigint;
BEGIN
    SELECT t.typrelid INTO named FROM pg_type t JOIN pg_class c ON c.oid = t.typrelid
     WHERE t.oid = pg_typeof(view) AND c.relkind = 'r';
    kept := headrace.history_of(named);
    SELECT p.* INTO moved FROM headrace.progress p WHERE p.view_id = kept.view_id;
    SELECT c.* INTO known FROM headrace.covered c WHERE c.view_id = kept.view_id;
    IF rows_as_of.txid IS NOT NULL THEN
        wanted := format('txid %s', rows_as_of.txid);
        bound := rows_as_of.txid;
    ELSIF rows_as_of.lsn IS NOT NULL THEN
        wanted := format('LSN %s', rows_as_of.lsn);
        IF rows_as_of.lsn BETWEEN kept.first_lsn AND greatest(moved.lsn, known.lsn) THEN
            SELECT coalesce(min(c.txid) - 1, moved.txid + kept.shift) INTO bound FROM headrace.history c
             WHERE c.history_id = kept.id AND c.txid > kept.first_txid AND c.lsn > rows_as_of.lsn;
        END IF;
    ELSE
        wanted := format('%s', rows_as_of.at);
        IF rows_as_of.at BETWEEN kept.first_at AND greatest(moved.source_commit_at, known.at) THEN
            SELECT coalesce(min(c.txid) - 1, moved.txid + kept.shift) INTO bound FROM headrace.history c
             WHERE c.history_id = kept.id AND c.txid > kept.first_txid AND c.commit_at > rows_as_of.at;
        END IF;
    END IF;
    IF bound IS NULL OR bound < kept.first_txid OR bound > moved.txid + kept.shift THEN
        PERFORM headrace.history_lost(named, wanted, moved.txid + kept.shift);
    END IF;
    RETURN QUERY EXECUTE format('
        SELECT (x.found).* FROM (
            SELECT r.image::%1$s AS found FROM (
                SELECT i.image, headrace.history_times(sum(i.weight)) AS times FROM (
                    SELECT (t.*)::text COLLATE "C" AS image, 1 AS weight FROM ONLY %1$s t
                    UNION ALL
                    SELECT (d.data::%1$s)::text COLLATE "C", -d.weight FROM headrace.history c
                     CROSS JOIN LATERAL unnest(c.weights, c.data) AS d (weight, data)
                     WHERE c.history_id = $1 AND c.txid > $2) i
                 GROUP BY i.image) r
             CROSS JOIN LATERAL generate_series(1, r.times)
            OFFSET 0) x', named) USING kept.id, bound;
END
$$;
