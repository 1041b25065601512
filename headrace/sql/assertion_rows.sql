-- Returns how many rows an assertion's query returns, by the changes of its table; NULL: there is none of that id, or the
-- caller may not read its whole table.
CREATE OR REPLACE FUNCTION headrace.assertion_rows(view_id bigint) RETURNS bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET jit = off SET row_security = on
AS $$
    SELECT CASE WHEN a.fill_txid > a.txid THEN a.fill_rows ELSE a.count END + coalesce((
               SELECT sum(t.net) FROM headrace.history t
                WHERE t.history_id = h.id AND t.txid > greatest(a.txid, a.fill_txid)), 0)::bigint
      FROM headrace.assertion_states a JOIN headrace.histories h ON h.view_id = a.view_id
     WHERE a.view_id = assertion_rows.view_id
$$;
