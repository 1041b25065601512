-- The table columns from which each column of a view comes, through subqueries, WITH queries and views, according to
-- the query as Postgres bound it (planner/logical/lineage.py).  One row for each origin, and one with NULLs for a column
-- that comes from no table.  source_column: NULL where rows are counted (count(*)).  how: same (copied), computed,
-- aggregated.  Tables and columns have their present names.  Conditions that only select rows are not origins.
CREATE OR REPLACE FUNCTION headrace.lineage(
    name text, OUT column_name text, OUT source_table text, OUT source_column text, OUT how text)
RETURNS SETOF record
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    parts  pg_catalog.text[] := pg_catalog.parse_ident(name);
    kept   pg_catalog.jsonb;
BEGIN
    SELECT coalesce(v.explain OPERATOR(pg_catalog.->) 'origins', pg_catalog.jsonb_build_object('why', v.explain OPERATOR(pg_catalog.->>) 'lineage'))
      INTO kept FROM headrace.views v
     WHERE v.view_name OPERATOR(pg_catalog.=) parts[pg_catalog.array_upper(parts, 1)]::pg_catalog.name
       AND CASE
           WHEN pg_catalog.array_length(parts, 1) OPERATOR(pg_catalog.=) 1 THEN v.schema_name OPERATOR(pg_catalog.=) ANY (pg_catalog.current_schemas(false))
           WHEN pg_catalog.array_length(parts, 1) OPERATOR(pg_catalog.=) 2 THEN v.schema_name OPERATOR(pg_catalog.=) parts[1]::pg_catalog.name
           ELSE false END
     ORDER BY pg_catalog.array_position(pg_catalog.current_schemas(false), v.schema_name) LIMIT 1;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = '42P01',
            MESSAGE = pg_catalog.format('view "%s" does not exist', name), HINT = 'See headrace.list_views().';
    END IF;
    IF pg_catalog.jsonb_typeof(kept) OPERATOR(pg_catalog.=) 'object' THEN
        RAISE EXCEPTION USING ERRCODE = '55000',
            MESSAGE = pg_catalog.format('nothing is kept of what the columns of view "%s" come from', name),
            DETAIL = coalesce(pg_catalog.format('It is %s.', kept OPERATOR(pg_catalog.->>) 'why'), 'It was created by an earlier version.'),
            HINT = CASE WHEN (kept OPERATOR(pg_catalog.->>) 'why') IS NULL THEN 'Run CALL headrace.resync_view.' ELSE '' END;
    END IF;
    RETURN QUERY
        SELECT c.entry OPERATOR(pg_catalog.->>) 'column',
               coalesce(r.oid::pg_catalog.regclass::pg_catalog.text,
                        CASE WHEN o.origin IS NOT NULL THEN pg_catalog.format('%I.%I', o.origin OPERATOR(pg_catalog.->>) 'schema',
                             o.origin OPERATOR(pg_catalog.->>) 'table') END),
               coalesce(a.attname::pg_catalog.text, CASE WHEN pg_catalog.length(o.origin OPERATOR(pg_catalog.->>) 'name') OPERATOR(pg_catalog.>) 0
                        THEN o.origin OPERATOR(pg_catalog.->>) 'name' END),
               o.origin OPERATOR(pg_catalog.->>) 'how'
          FROM pg_catalog.jsonb_array_elements(kept) WITH ORDINALITY c (entry, place)
          LEFT JOIN LATERAL pg_catalog.jsonb_array_elements(c.entry OPERATOR(pg_catalog.->) 'from') WITH ORDINALITY o (origin, place) ON true
          LEFT JOIN pg_catalog.pg_class r ON r.oid OPERATOR(pg_catalog.=) (o.origin OPERATOR(pg_catalog.->>) 'oid')::pg_catalog.oid
          LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) r.oid AND NOT a.attisdropped
                AND a.attnum OPERATOR(pg_catalog.>) 0
                AND a.attnum::pg_catalog.int8 OPERATOR(pg_catalog.=) (o.origin OPERATOR(pg_catalog.->>) 'attnum')::pg_catalog.int8
         ORDER BY c.place, o.place;
END
$$;
