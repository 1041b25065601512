-- Returns the id of the view that a name stands for on the caller's search path, whoever owns the view.
CREATE OR REPLACE FUNCTION headrace.find_view(name text) RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    parts  pg_catalog.text[];
    paths  pg_catalog.name[] := pg_catalog.current_schemas(false);
    found  pg_catalog.int8;
BEGIN
    IF name IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22004', MESSAGE = 'argument "name" must not be null';
    END IF;
    BEGIN
        parts := pg_catalog.parse_ident(name);
    EXCEPTION WHEN invalid_parameter_value THEN
        RAISE EXCEPTION USING ERRCODE = '42602', MESSAGE = pg_catalog.format('invalid name syntax: "%s"', name),
            HINT = 'Write it as name or schema.name, with double quotes where SQL needs them.';
    END;
    IF pg_catalog.array_length(parts, 1) OPERATOR(pg_catalog.=) 2 THEN
        paths := ARRAY[parts[1]]::pg_catalog.name[];
        parts := parts[2:2];
    END IF;
    SELECT s.id INTO found
      FROM pg_catalog.unnest(paths) WITH ORDINALITY p (schema, n)
      JOIN headrace.view_states() s ON s.name OPERATOR(pg_catalog.=) pg_catalog.format('%I.%I', p.schema, parts[1])
     WHERE pg_catalog.array_length(parts, 1) OPERATOR(pg_catalog.=) 1
     ORDER BY p.n LIMIT 1;
    IF found IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '42P01',
            MESSAGE = pg_catalog.format('view "%s" does not exist', name), HINT = 'See headrace.list_views().';
    END IF;
    RETURN found;
END
$$;
