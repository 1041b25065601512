-- Waits inside a transaction until a view covers what is committed now, and so each position that has been reached.
-- Calls that the current role has queued are waited for, too, if there is no such view, or one of them creates or drops it.
CREATE OR REPLACE FUNCTION headrace.wait_here(name text, lsn pg_lsn, timeout interval) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    ends   pg_catalog.timestamptz := pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) timeout;
    view   pg_catalog.int8;
    awaited pg_catalog.int8;
    seen   pg_catalog.text;
    failed pg_catalog.jsonb;
BEGIN
    IF pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.=) ANY ('{repeatable read,serializable}'::pg_catalog.text[]) THEN
        RAISE EXCEPTION USING ERRCODE = '0A000',
            MESSAGE = 'wait_for cannot be called in a transaction whose snapshot does not change',
            DETAIL = 'The transaction would not see what it has waited for.',
            HINT = 'Call it before the transaction, or use READ COMMITTED.';
    ELSIF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '25001',
            MESSAGE = 'wait_for cannot be called in a transaction that has written',
            DETAIL = 'Views show a change after its transaction has committed.',
            HINT = 'Commit first.';
    ELSIF lsn OPERATOR(pg_catalog.>) pg_catalog.pg_current_wal_insert_lsn() THEN
        RAISE EXCEPTION USING ERRCODE = '0A000',
            MESSAGE = 'wait_for cannot wait for a later position in a transaction',
            HINT = 'Call it outside of a transaction.';
    END IF;
    LOOP
        BEGIN
            view := headrace.find_view(name);
        EXCEPTION WHEN undefined_table THEN
            view := NULL;
        END;
        SELECT pg_catalog.min(c.id) INTO awaited FROM headrace.calls() c
         WHERE c.status OPERATOR(pg_catalog.=) ANY ('{pending,running}'::pg_catalog.text[])
           AND (view IS NULL OR c.name OPERATOR(pg_catalog.=) wait_here.name
                AND c.procedure OPERATOR(pg_catalog.=) ANY ('{create_view,drop_view,create_assertion,drop_assertion}'::pg_catalog.text[]));
        EXIT WHEN awaited IS NULL;
        IF pg_catalog.clock_timestamp() OPERATOR(pg_catalog.>) ends THEN
            RAISE EXCEPTION USING ERRCODE = '57014',
                MESSAGE = pg_catalog.format('canceling wait for view %s due to timeout', name),
                DETAIL = 'Calls made in earlier transactions are not carried out yet.',
                HINT = 'See headrace.calls().';
        END IF;
        SELECT c.seen, c.failed INTO seen, failed FROM headrace.check_command(awaited, seen) c;
        -- The error of a call that has failed is not that of this wait.
        IF failed IS NOT NULL AND EXISTS (
            SELECT FROM headrace.calls() c WHERE c.id OPERATOR(pg_catalog.=) awaited
               AND c.status OPERATOR(pg_catalog.<>) 'failed')
        THEN
            PERFORM headrace.raise_error(failed);
        END IF;
    END LOOP;
    IF view IS NULL THEN
        SELECT pg_catalog.max(c.id) INTO awaited FROM headrace.calls() c
         WHERE c.status OPERATOR(pg_catalog.=) 'failed' AND c.name OPERATOR(pg_catalog.=) wait_here.name;
        IF awaited IS NOT NULL THEN
            SELECT c.failed INTO failed FROM headrace.check_command(awaited, NULL) c;
            PERFORM headrace.raise_error(failed);
        END IF;
        view := headrace.find_view(name);
    END IF;
    PERFORM headrace.ask_engine(
        'wait_for', 'wait_for', pg_catalog.jsonb_build_object('name', name), headrace.captured_settings(), false, false, ends);
END
$$;
