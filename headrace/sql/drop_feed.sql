-- Forgets a subscriber.
CREATE OR REPLACE PROCEDURE headrace.drop_feed(name text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET row_security = on
AS $$
BEGIN
    PERFORM headrace.feed_of(drop_feed.name);
    DELETE FROM headrace.feeds f WHERE f.name = drop_feed.name;
END
$$;
