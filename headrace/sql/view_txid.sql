-- Returns the last txid that the table of a view with a history contains in the same snapshot.
CREATE OR REPLACE FUNCTION headrace.view_txid(view regclass) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off SET row_security = on
AS $$
DECLARE
    kept headrace.histories;
BEGIN
    kept := headrace.history_of(view);
    RETURN (SELECT p.txid + kept.shift FROM headrace.progress p WHERE p.view_id = kept.view_id);
END
$$;
