-- Raises the error for a request before the start or after the end of a history.
CREATE OR REPLACE FUNCTION headrace.history_lost(view regclass, wanted text, last bigint) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off SET row_security = on
AS $$
DECLARE
    kept headrace.histories;
BEGIN
    kept := headrace.history_of(view);
    RAISE EXCEPTION USING ERRCODE = '22023',
        MESSAGE = format('the history of view %s does not reach %s', view, wanted),
        DETAIL = format('It goes from txid %s (LSN %s, %s) to txid %s.', kept.first_txid, kept.first_lsn,
                        kept.first_at, last),
        HINT = format('To begin anew, read headrace.view_txid(%1$L) and the table in one snapshot, or'
                      ' headrace.view_as_of(NULL::%1$s, txid => %2$s), and go on from that txid. What is later than'
                      ' the last change is the table itself, after headrace.wait_for.', view, last);
END
$$;
