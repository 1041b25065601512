-- The plan of a view, one line per row.  stage: logical, optimised, physical, sources, key, lineage (as the planner
-- stored them); analyze, ast.  format: text, json, dot, mermaid (docs/manual/explain.md).  The engine answers
-- for the text of a query instead of a view's name, the stages analyze and ast, and formats other than text and
-- json; this function asks it for these, and for physical if it can: the engine knows where the parts are, too.
DROP FUNCTION IF EXISTS headrace.explain_view(text, text);
CREATE OR REPLACE FUNCTION headrace.explain_view(
    name_or_query text, stage text DEFAULT 'physical', format text DEFAULT 'text', dialect text DEFAULT NULL)
RETURNS TABLE (plan text)
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    parts   pg_catalog.text[];
    stages  pg_catalog.jsonb;
    rows    pg_catalog.text;  -- where the first rows of a view over other views come from
    told    pg_catalog.text;
    lines   pg_catalog.jsonb;
BEGIN
    BEGIN
        parts := pg_catalog.parse_ident(name_or_query);
    EXCEPTION WHEN invalid_parameter_value THEN
        parts := NULL;
    END;
    IF parts IS NULL OR dialect IS NOT NULL
       OR stage OPERATOR(pg_catalog.=) ANY (ARRAY['analyze', 'ast']::pg_catalog.text[])
       OR format OPERATOR(pg_catalog.=) ANY (ARRAY['dot', 'mermaid']::pg_catalog.text[])
       OR stage OPERATOR(pg_catalog.=) 'physical' AND headrace.engine_running()
          AND pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.=) 'read committed' THEN
        lines := headrace.ask_engine(
            'explain_view', 'explain', pg_catalog.jsonb_build_object(
                'name_or_query', name_or_query, 'stage', stage, 'format', format, 'dialect', dialect),
            headrace.captured_settings());
        RETURN QUERY SELECT l.line OPERATOR(pg_catalog.->>) 'plan'
          FROM pg_catalog.jsonb_array_elements(lines) WITH ORDINALITY l (line, n) ORDER BY l.n;
        RETURN;
    END IF;
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
    IF NOT format OPERATOR(pg_catalog.=) ANY (ARRAY['text', 'json']::pg_catalog.text[]) THEN
        RAISE EXCEPTION USING ERRCODE = '22023',
            MESSAGE = pg_catalog.format('there is no format "%s"', format), HINT = 'Formats: text, json, dot, mermaid.';
    END IF;
    IF stage OPERATOR(pg_catalog.=) 'physical' THEN
        rows := stages OPERATOR(pg_catalog.->>) 'first_rows';
    END IF;
    stages := stages OPERATOR(pg_catalog.-) ARRAY['tidy', 'first_rows']::pg_catalog.text[];
    IF NOT coalesce(pg_catalog.jsonb_typeof(stages OPERATOR(pg_catalog.->) stage) OPERATOR(pg_catalog.=) 'string', false) THEN
        RAISE EXCEPTION USING ERRCODE = '22023',
            MESSAGE = pg_catalog.format('view "%s" has no plan of stage "%s"', name_or_query, stage),
            HINT = pg_catalog.format('Stages: %s.', (SELECT pg_catalog.string_agg(k, ', ' ORDER BY k)
                                       FROM pg_catalog.jsonb_each(stages) s (k, v)
                                      WHERE pg_catalog.jsonb_typeof(v) OPERATOR(pg_catalog.=) 'string'));
    END IF;
    IF format OPERATOR(pg_catalog.=) 'text' THEN
        RETURN QUERY SELECT t FROM pg_catalog.regexp_split_to_table(pg_catalog.concat_ws(E'\n',
            pg_catalog.rtrim(stages OPERATOR(pg_catalog.->>) stage, E'\n'), rows), E'\n') t;
        RETURN;
    END IF;
    SELECT pg_catalog.jsonb_pretty(g) INTO told
      FROM pg_catalog.jsonb_array_elements(coalesce(stages OPERATOR(pg_catalog.->) 'graphs', '[]'::pg_catalog.jsonb)) g
     WHERE (g OPERATOR(pg_catalog.->>) 'stage') OPERATOR(pg_catalog.=) stage;
    RETURN QUERY SELECT coalesce(told, pg_catalog.jsonb_pretty(pg_catalog.jsonb_build_object('stage', stage, 'lines',
        pg_catalog.to_jsonb(pg_catalog.string_to_array(pg_catalog.rtrim(stages OPERATOR(pg_catalog.->>) stage, E'\n'), E'\n')))));
END
$$;
-- The procedure of an earlier version, which had no options.
DROP PROCEDURE IF EXISTS headrace.check_view(text, text);
