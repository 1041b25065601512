-- Returns whether a role may have another feed.  VOLATILE, so that it sees the rows inserted by its own statement.
-- Dropped feeds count until the janitor has deleted them.
CREATE OR REPLACE FUNCTION headrace.has_room_for_feed(role oid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
BEGIN
    RETURN (SELECT count(*) FROM headrace.feeds f WHERE f.owner = role) < 1000;
END
$$;
