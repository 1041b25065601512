-- Waits until a view with a history covers a position or a time after its last change, so that no change up to there
-- is missing.  Returns at once where the history begins later.
-- The worker checks for the advisory lock once a second, and writes headrace.covered (runtime/coverage.py).
-- The lock ends with the subtransaction, by the error HR001, and not with the transaction.
-- VOLATILE: each query has its own snapshot, so the caller's next statement reads the awaited changes.
CREATE OR REPLACE FUNCTION headrace.await_history(view regclass, lsn pg_lsn, at timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET jit = off SET row_security = on
AS $$
#variable_conflict use_variable
DECLARE
    most_s CONSTANT float8 := 30;
    kept   headrace.histories;
    wanted text := coalesce('LSN ' || lsn, at::text);
    begun  timestamptz := clock_timestamp();
    looked timestamptz;
    status text;
    reason text;
BEGIN
    kept := headrace.history_of(view);
    IF lsn < kept.first_lsn OR at < kept.first_at OR EXISTS (
        SELECT FROM headrace.progress p LEFT JOIN headrace.covered c ON c.view_id = p.view_id
         WHERE p.view_id = kept.view_id
           AND (lsn <= greatest(p.lsn, c.lsn) OR at <= greatest(p.source_commit_at, c.at))) THEN
        RETURN;
    ELSIF at > clock_timestamp() OR NOT pg_is_in_recovery() AND lsn > pg_current_wal_insert_lsn() THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('%s is in the future', wanted),
            DETAIL = 'A view shows committed transactions, and more may be committed until then.',
            HINT = 'SELECT clock_timestamp(), pg_current_wal_insert_lsn() are the server''s time and position now.';
    ELSIF pg_is_in_recovery() THEN
        RAISE EXCEPTION USING ERRCODE = '22023',
            MESSAGE = format('the history of view %s does not reach %s', view, wanted),
            DETAIL = 'On a standby it is unknown whether changes are missing after the last one that is present.',
            HINT = 'Call it on the primary, or for an earlier time.';
    ELSIF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING ERRCODE = '22023',
            MESSAGE = format('the history of view %s does not reach %s', view, wanted),
            DETAIL = format('This transaction is %s: its snapshot shows no changes that arrive while it waits.',
                            upper(current_setting('transaction_isolation'))),
            HINT = 'Call it in a READ COMMITTED transaction, where it waits until the view covers that.'
                   ' Transactions that begin later can read it as well.';
    END IF;
    BEGIN
        LOOP
            kept := headrace.history_of(view);
            IF EXISTS (SELECT FROM headrace.progress p LEFT JOIN headrace.covered c ON c.view_id = p.view_id
                        WHERE p.view_id = kept.view_id
                          AND (lsn <= greatest(p.lsn, c.lsn) OR at <= greatest(p.source_commit_at, c.at))) THEN
                RAISE EXCEPTION USING ERRCODE = 'HR001';
            END IF;
            IF looked IS NULL OR clock_timestamp() > looked + interval '0.5 s' THEN
                looked := clock_timestamp();
                SELECT s.status INTO status FROM headrace.view_states() s WHERE s.id = kept.view_id;
                IF status = 'paused' THEN
                    RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format('view %s is paused', view),
                        DETAIL = format('It was not known to cover %s when it was paused.', wanted),
                        HINT = format('CALL headrace.resume_view(%L).', view);
                ELSIF status = 'error' THEN
                    SELECT headrace.view_message(kept.view_id) INTO reason;
                    RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format('view %s has stopped', view),
                        DETAIL = coalesce(reason, 'Its owner sees why in headrace.list_views().'),
                        HINT = format('CALL headrace.resync_view(%1$L) rebuilds it, unless that is under way'
                                      ' already: CALL headrace.wait_for(%1$L) waits for it.', view);
                ELSIF status = 'sink_error' THEN
                    SELECT headrace.view_message(kept.view_id) INTO reason;
                    RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format('view %s cannot be written now', view),
                        DETAIL = coalesce(reason, 'Its owner sees why in headrace.list_views().'),
                        HINT = format('CALL headrace.wait_for(%L) returns when it can be written again.', view);
                ELSIF status = 'stopped' THEN
                    RAISE EXCEPTION USING ERRCODE = '57P03', MESSAGE = 'headrace is not running',
                        DETAIL = format('It is unknown whether view %s covers %s.', view, wanted),
                        HINT = 'Start it with `headrace start --source …` and call again.';
                END IF;
                PERFORM pg_try_advisory_xact_lock_shared(1212437061, (kept.view_id % 2147483647)::int);
            END IF;
            IF clock_timestamp() > begun + most_s * interval '1 s' THEN
                RAISE EXCEPTION USING ERRCODE = '57014',
                    MESSAGE = format('canceling wait for view %s due to timeout', view),
                    DETAIL = format('It is not known to cover %s after %s s.', wanted, most_s),
                    HINT = 'See headrace.list_views() for its status and lag.';
            END IF;
            PERFORM pg_sleep(0.02);
        END LOOP;
    EXCEPTION WHEN SQLSTATE 'HR001' THEN
        NULL;
    END;
END
$$;
