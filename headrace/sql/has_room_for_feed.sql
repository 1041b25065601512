-- Whether a role may have one more. A volatile function sees the rows that its own statement has inserted.
-- Dropped feeds count until the janitor has deleted them.
CREATE OR REPLACE FUNCTION headrace.has_room_for_feed(role oid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (SELECT count(*) FROM headrace.feeds f WHERE f.owner = role) < 1000;
END
$$;
