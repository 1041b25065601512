-- The plan of a view: one line per row.  Stages are those the planner kept, such as logical,
-- optimised and physical.  A query's text (instead of a view's name) is answered by the
-- commander, on its own port: a function cannot ask the engine, because nothing it writes is
-- seen before its transaction ends.
DROP FUNCTION IF EXISTS headrace.explain_view(text, text);
CREATE FUNCTION headrace.explain_view(name_or_query text, stage text DEFAULT 'physical')
RETURNS TABLE (plan text)
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    parts   pg_catalog.text[];
    stages  pg_catalog.jsonb;
BEGIN
    BEGIN
        parts := pg_catalog.parse_ident(name_or_query);
    EXCEPTION WHEN invalid_parameter_value THEN
        RAISE EXCEPTION USING ERRCODE = '0A000',
            MESSAGE = 'a query is explained only on the port of headrace, by a statement of its own',
            HINT = 'On the port of headrace, with autocommit on, write exactly SELECT * FROM headrace.explain_view(query);'
                   ' on any connection, CALL headrace.check_view(query) answers the plan. The name of a view may be explained anywhere.';
    END;
    SELECT v.explain INTO stages FROM headrace.views v
     WHERE v.view_name OPERATOR(pg_catalog.=) parts[pg_catalog.array_upper(parts, 1)]::pg_catalog.name
       AND CASE  -- CASE … WHEN 1 would look for an operator on the caller's path
           WHEN pg_catalog.array_length(parts, 1) OPERATOR(pg_catalog.=) 1 THEN v.schema_name OPERATOR(pg_catalog.=) ANY (pg_catalog.current_schemas(false))
           WHEN pg_catalog.array_length(parts, 1) OPERATOR(pg_catalog.=) 2 THEN v.schema_name OPERATOR(pg_catalog.=) parts[1]::pg_catalog.name
           ELSE false END
     ORDER BY pg_catalog.array_position(pg_catalog.current_schemas(false), v.schema_name) LIMIT 1;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = '42P01',
            MESSAGE = pg_catalog.format('view "%s" does not exist', name_or_query),
            HINT = 'See headrace.list_views().';
    END IF;
    IF (stages OPERATOR(pg_catalog.->>) stage) IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22023',
            MESSAGE = pg_catalog.format('view "%s" has no plan of stage "%s"', name_or_query, stage),
            HINT = pg_catalog.format('Stages: %s.', (SELECT pg_catalog.string_agg(k, ', ' ORDER BY k)
                                       FROM pg_catalog.jsonb_object_keys(stages) k));
    END IF;
    RETURN QUERY SELECT t FROM pg_catalog.regexp_split_to_table(
        pg_catalog.rtrim(stages OPERATOR(pg_catalog.->>) stage, E'\n'), E'\n') t;
END
$$;
