-- Mark of a table: while it is unchanged, the table, its columns and its child tables were not altered, and it got no
-- trigger or rule.  It is read before each write (sink/table.py), so it is a function, whose plan is cached.
CREATE OR REPLACE FUNCTION headrace.table_mark(wanted oid) RETURNS text
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN (
        SELECT ROW(c.xmin,
                   ARRAY(SELECT a.xmin FROM pg_catalog.pg_attribute a
                          WHERE a.attrelid OPERATOR(pg_catalog.=) wanted
                            AND a.attnum OPERATOR(pg_catalog.>) 0),
                   CASE WHEN c.relhastriggers THEN
                   ARRAY(SELECT t.xmin FROM pg_catalog.pg_trigger t
                          WHERE t.tgrelid OPERATOR(pg_catalog.=) wanted) END,
                   CASE WHEN c.relhasrules THEN
                   ARRAY(SELECT r.xmin FROM pg_catalog.pg_rewrite r
                          WHERE r.ev_class OPERATOR(pg_catalog.=) wanted) END,
                   CASE WHEN c.relhassubclass THEN
                   ARRAY(SELECT h.xmin FROM pg_catalog.pg_inherits h
                          WHERE h.inhparent OPERATOR(pg_catalog.=) wanted) END)::pg_catalog.text
          FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) wanted);
END
$$;
