-- Returns the last changes of the rows of a view that have the values in key, the latest first: what a row was before and
-- after each.  xids: the transactions of that txid, the first 100 of them; empty or NULL: a population, or only the passing
-- of time.  requests: the request ids of these transactions, in the same order; NULL: none has one.  The rows are texts of the view's row type, (after::v).* are the columns.
DROP FUNCTION IF EXISTS headrace.who_changed(regclass, jsonb, int);
CREATE FUNCTION headrace.who_changed(view regclass, key jsonb, most int DEFAULT 10)
RETURNS TABLE (txid bigint, lsn pg_lsn, commit_at timestamptz, xids bigint[], change text, before text, after text,
    requests text[])
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off SET row_security = on
AS $$
#variable_conflict use_variable
DECLARE
    kept headrace.histories;
    name text;
BEGIN
    kept := headrace.history_of(view);
    IF jsonb_typeof(key) <> 'object' OR key = '{}' OR key IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'the key must be an object of columns and values',
            HINT = 'Write for example SELECT * FROM headrace.who_changed(''v'', ''{"id": 7}'').';
    END IF;
    SELECT k INTO name FROM jsonb_object_keys(key) k
     WHERE NOT EXISTS (SELECT FROM pg_attribute a
                        WHERE a.attrelid = view AND a.attnum > 0 AND NOT a.attisdropped AND a.attname = k)
     LIMIT 1;
    IF name IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '42703', MESSAGE = format('column "%s" of view %s does not exist', name, view);
    END IF;
    -- The order and LIMIT let Postgres read the history backwards, and only as far as needed.
    RETURN QUERY EXECUTE format('
        SELECT c.txid, c.lsn, c.commit_at, c.xids, p.change, p.before, p.after, c.requests
          FROM (SELECT DISTINCT ON (h.txid) h.txid, h.lsn, h.commit_at, h.xids, h.requests FROM headrace.history h
                 WHERE h.history_id = $1 AND h.txid > $2 ORDER BY h.txid DESC) c
         CROSS JOIN LATERAL (
             WITH rows AS (
                 SELECT d.weight, d.data, row_number() OVER (PARTITION BY d.weight > 0 ORDER BY h.part, d.place) AS place
                   FROM headrace.history h
                  CROSS JOIN LATERAL unnest(h.weights, h.data) WITH ORDINALITY d (weight, data, place)
                  WHERE h.history_id = $1 AND h.txid = c.txid AND to_jsonb(d.data::%1$s) @> $3)
             SELECT CASE WHEN b.data IS NULL THEN ''added'' WHEN a.data IS NULL THEN ''removed'' ELSE ''changed'' END
                    AS change, b.data AS before, a.data AS after, coalesce(a.place, b.place) AS place
               FROM (SELECT * FROM rows WHERE weight < 0) b
               FULL JOIN (SELECT * FROM rows WHERE weight > 0) a ON a.place = b.place) p
         ORDER BY c.txid DESC, p.place LIMIT $4', view) USING kept.id, kept.first_txid, key, most;
END
$$;
