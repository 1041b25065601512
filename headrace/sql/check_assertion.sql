-- Raises an error if the assertion is violated by what is committed now; waits until the view covers that.  The grace
-- does not matter.  The rows are counted by the view's history: the table is not read.
CREATE OR REPLACE PROCEDURE headrace.check_assertion(name text, timeout interval DEFAULT NULL)
LANGUAGE plpgsql
AS $$
DECLARE
    view    pg_catalog.int8;
    shown   pg_catalog.text;
    total   pg_catalog.int8;
    attempt pg_catalog.int4 := 0;
BEGIN
    CALL headrace.wait_for(name, NULL, timeout);
    -- A view that is filled anew gets another id.
    LOOP
        attempt := attempt OPERATOR(pg_catalog.+) 1;
        view := headrace.find_view(name);
        SELECT s.name, headrace.assertion_rows(view) INTO shown, total
          FROM headrace.view_states() s WHERE s.id OPERATOR(pg_catalog.=) view AND s.assertion;
        EXIT WHEN total IS NOT NULL OR attempt OPERATOR(pg_catalog.=) 5;
    END LOOP;
    IF shown IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '42809', MESSAGE = pg_catalog.format('view %s is not an assertion', name),
            HINT = 'See headrace.assertions().';
    ELSIF total IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = pg_catalog.format('permission denied for assertion %s', shown),
            DETAIL = 'Roles that may read its whole table may check it.';
    ELSIF total OPERATOR(pg_catalog.<) 0 THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = pg_catalog.format('the rows of assertion %s are not known', shown),
            DETAIL = 'Its table does not match its changes.',
            HINT = pg_catalog.format('CALL headrace.resync_view(%L).', shown);
    ELSIF total OPERATOR(pg_catalog.>) 0 THEN
        RAISE EXCEPTION USING ERRCODE = '23514',
            MESSAGE = pg_catalog.format('assertion %s is violated', shown),
            DETAIL = pg_catalog.format('Number of rows that its query returns: %s.', total),
            HINT = pg_catalog.format('SELECT * FROM %s;', shown);
    END IF;
END
$$;
