-- Returns the rows of view_diff(), once the history reaches so far.  STABLE: all its queries have one snapshot.
-- Rows are compared as texts, printed by their types' output functions under the settings here; those with equal values
-- of the table's primary key are one changed row.
CREATE OR REPLACE FUNCTION headrace.net_changes(
    view regclass, since bigint, until bigint, since_at timestamptz, until_at timestamptz)
RETURNS TABLE (change text, times bigint, before text, after text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off SET row_security = on
    SET "TimeZone" = 'UTC' SET "DateStyle" = 'ISO, YMD' SET "IntervalStyle" = 'postgres'
    SET extra_float_digits = 3 SET bytea_output = 'hex' SET lc_monetary = 'C' SET xmloption = 'content'
    SET array_nulls = on
AS $$
#variable_conflict use_variable
DECLARE
    kept  headrace.histories;
    moved headrace.progress;
    known headrace.covered;
    last  bigint;
    key   text;
BEGIN
    kept := headrace.history_of(view);
    SELECT p.* INTO moved FROM headrace.progress p WHERE p.view_id = kept.view_id;
    SELECT c.* INTO known FROM headrace.covered c WHERE c.view_id = kept.view_id;
    last := moved.txid + kept.shift;
    IF since_at IS NOT NULL THEN
        IF since_at >= kept.first_at THEN
            SELECT coalesce(min(c.txid) - 1, last) INTO since FROM headrace.history c
             WHERE c.history_id = kept.id AND c.txid > kept.first_txid AND c.commit_at > since_at;
        END IF;
        IF since IS NULL THEN
            PERFORM headrace.history_lost(view, since_at::text, last);
        END IF;
    END IF;
    IF until_at IS NOT NULL THEN
        IF until_at BETWEEN kept.first_at AND greatest(moved.source_commit_at, known.at) THEN
            SELECT coalesce(min(c.txid) - 1, last) INTO until FROM headrace.history c
             WHERE c.history_id = kept.id AND c.txid > kept.first_txid AND c.commit_at > until_at;
        END IF;
        IF until IS NULL THEN
            PERFORM headrace.history_lost(view, until_at::text, last);
        END IF;
    END IF;
    until := coalesce(until, last);
    IF since IS NULL OR since < kept.first_txid OR since > last THEN
        PERFORM headrace.history_lost(view, format('txid %s', coalesce(since::text, 'NULL')), last);
    ELSIF until < since OR until > last THEN
        PERFORM headrace.history_lost(view, format('txid %s', until), last);
    END IF;
    SELECT string_agg(format('(r.image::%s).%I', view, a.attname), ', ' ORDER BY k.place) INTO key
      FROM pg_index i
     CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY k (number, place)
      JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
     WHERE i.indrelid = view AND i.indisprimary;
    -- Without a key each row stands for itself.
    RETURN QUERY EXECUTE format('
        WITH net AS MATERIALIZED (
            SELECT s.image, sum(s.weight)::bigint AS weight FROM (
                SELECT (d.data::%1$s)::text COLLATE "C" AS image, d.weight FROM headrace.history c
                 CROSS JOIN LATERAL unnest(c.weights, c.data) AS d (weight, data)
                 WHERE c.history_id = $1 AND c.txid > $2 AND c.txid <= $3) s
             GROUP BY s.image HAVING sum(s.weight) <> 0),
        keyed AS MATERIALIZED (
            SELECT r.image, r.weight, %2$s AS key FROM net r)
        SELECT CASE WHEN b.image IS NULL THEN ''added'' WHEN a.image IS NULL THEN ''removed'' ELSE ''changed'' END,
               abs(coalesce(a.weight, b.weight)), b.image, a.image
          FROM (SELECT * FROM keyed WHERE weight < 0) b
          FULL JOIN (SELECT * FROM keyed WHERE weight > 0) a ON a.key = b.key
         ORDER BY coalesce(a.image, b.image)',
        view, coalesce('ROW(' || key || ')', 'r.image')) USING kept.id, since, until;
END
$$;
