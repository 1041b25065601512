-- Says where rows with the values in key are dropped: the first operators, from the tables on, that have such rows in their
-- input (rows: how many) and none in their output.  A union has one for each of its inputs.  If the view has such a row,
-- reason says so.  Values of computed columns are compared where they are computed.
CREATE OR REPLACE FUNCTION headrace.why_not(
    name text, key jsonb, OUT txid bigint, OUT node text, OUT operator text, OUT rows bigint, OUT reason text)
RETURNS SETOF record
LANGUAGE sql VOLATILE
AS $$
    SELECT a.txid, a.node, a.operator, a.rows, a.reason
      FROM pg_catalog.jsonb_to_recordset(
        headrace.ask_engine('why_not', 'show_why_not',
            pg_catalog.jsonb_build_object('name', name, 'key', key::pg_catalog.text), headrace.captured_settings(), true))
      AS a(txid pg_catalog.int8, node pg_catalog.text, operator pg_catalog.text, rows pg_catalog.int8, reason pg_catalog.text)
$$;
