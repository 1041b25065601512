-- Waits inside a transaction until a view covers what is committed now, and so each position that has been reached.
-- Calls that the current role has queued are waited for, too, because one of them may create the view.
CREATE OR REPLACE FUNCTION headrace.wait_here(name text, lsn pg_lsn, timeout interval) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    ends   pg_catalog.timestamptz := pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) timeout;
    failed pg_catalog.jsonb;
    view   pg_catalog.int8;
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
    WHILE EXISTS (
        SELECT FROM headrace.calls() c WHERE c.status OPERATOR(pg_catalog.=) ANY ('{pending,running}'::pg_catalog.text[]))
    LOOP
        IF pg_catalog.clock_timestamp() OPERATOR(pg_catalog.>) ends THEN
            RAISE EXCEPTION USING ERRCODE = '57014',
                MESSAGE = pg_catalog.format('canceling wait for view %s due to timeout', name),
                DETAIL = 'Calls made in earlier transactions are not carried out yet.',
                HINT = 'See headrace.calls().';
        END IF;
        PERFORM pg_catalog.pg_sleep(0.02);
    END LOOP;
    BEGIN
        view := headrace.find_view(name);
    EXCEPTION WHEN undefined_table THEN
        SELECT c.error INTO failed FROM headrace.commands c
         WHERE c.queued AND c.status OPERATOR(pg_catalog.=) 'failed' AND c.subject OPERATOR(pg_catalog.=) wait_here.name
           AND c.caller OPERATOR(pg_catalog.=) pg_catalog.quote_ident(CURRENT_USER)::pg_catalog.regrole::pg_catalog.oid
         ORDER BY c.id DESC LIMIT 1;
        IF failed IS NULL THEN
            RAISE;
        END IF;
        RAISE EXCEPTION USING ERRCODE = coalesce(failed OPERATOR(pg_catalog.->>) 'C', 'XX000'),
            MESSAGE = coalesce(failed OPERATOR(pg_catalog.->>) 'M', 'unknown error'),
            DETAIL = coalesce(failed OPERATOR(pg_catalog.->>) 'D', ''),
            HINT = coalesce(failed OPERATOR(pg_catalog.->>) 'H', '');
    END;
    PERFORM headrace.ask_engine('wait_for', 'wait_for', view, false, false, false, ends);
END
$$;
