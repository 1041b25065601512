-- The last txid that a view with a history shows: what its table has in the same snapshot.
CREATE OR REPLACE FUNCTION headrace.view_txid(view regclass) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET row_security = on
AS $$
DECLARE
    kept headrace.histories;
BEGIN
    kept := headrace.history_of(view);
    RETURN (SELECT p.txid + kept.shift FROM headrace.progress p WHERE p.view_id = kept.view_id);
END
$$;
