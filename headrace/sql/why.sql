-- Returns the rows of tables from which the rows of a view with the values in key follow, as of the txid of the view.
-- The first rows are those of the view (note: result); then each table's rows (source), most of each at most.  rows: how
-- often the row occurs, or how many rows a line without contents stands for; note says which.
CREATE OR REPLACE FUNCTION headrace.why(
    name text, key jsonb, most bigint DEFAULT 100, OUT txid bigint, OUT source text, OUT contents jsonb,
    OUT rows bigint, OUT note text)
RETURNS SETOF record
LANGUAGE sql VOLATILE
AS $$
    SELECT a.txid, a.source, a.contents, a.rows, a.note
      FROM pg_catalog.jsonb_to_recordset(
        headrace.ask_engine('why', 'show_why',
            pg_catalog.jsonb_build_object('name', name, 'key', key::pg_catalog.text, 'most', most), headrace.captured_settings(), true))
      AS a(txid pg_catalog.int8, source pg_catalog.text, contents pg_catalog.jsonb, rows pg_catalog.int8, note pg_catalog.text)
$$;
