-- Drops a feed.
CREATE OR REPLACE PROCEDURE headrace.drop_feed(name text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off SET row_security = on
AS $$
DECLARE
    feed headrace.feeds;
BEGIN
    feed := headrace.feed_of(drop_feed.name);
    UPDATE headrace.feeds f SET name = NULL WHERE f.id = feed.id;
END
$$;
