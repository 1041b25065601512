-- Returns a feed of the current user, or else of a role of which the user is a member.
CREATE OR REPLACE FUNCTION headrace.feed_of(name text) RETURNS headrace.feeds
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off SET row_security = on
AS $$
DECLARE
    found headrace.feeds;
BEGIN
    SELECT f.* INTO found FROM headrace.feeds f WHERE f.name = feed_of.name
     ORDER BY f.owner = to_regrole(quote_ident(current_user)) DESC, f.id LIMIT 1;
    IF found.name IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '42704', MESSAGE = format('feed "%s" does not exist', feed_of.name),
            DETAIL = 'A feed ends with its view, or with the view''s history.',
            HINT = 'CALL headrace.create_feed(name, view [, since]).';
    END IF;
    RETURN found;
END
$$;
