-- Refuses rows in a stand-in, because its rows are in the source.
CREATE OR REPLACE FUNCTION headrace.refuse_rows() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- Where a view is verified they are there for a moment, and never committed.
    IF pg_catalog.current_setting('headrace.filling', true) OPERATOR(pg_catalog.=) 'on' THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION USING ERRCODE = '0A000',
        MESSAGE = pg_catalog.format('table %I.%I is a stand-in: its rows are in another database',
                                    TG_TABLE_SCHEMA, TG_TABLE_NAME),
        HINT = 'Write to the table there; views of Headrace read it.';
END
$$;
