-- Creates a feed, a subscriber's position: from now on, or after txid `since`; 0: all changes that are kept.
CREATE OR REPLACE PROCEDURE headrace.create_feed(name text, view regclass, since bigint DEFAULT NULL)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off SET row_security = on
AS $$
#variable_conflict use_variable
DECLARE
    kept  headrace.histories;
    last  bigint;
BEGIN
    kept := headrace.history_of(view);
    last := headrace.view_txid(view);
    since := CASE WHEN since = 0 THEN kept.first_txid ELSE since END;
    IF since NOT BETWEEN kept.first_txid AND last THEN
        PERFORM headrace.history_lost(view, format('txid %s', since), last);
    END IF;
    IF name IS NULL OR length(name) NOT BETWEEN 1 AND 63 THEN
        RAISE EXCEPTION USING ERRCODE = '42602', MESSAGE = 'the name of a feed has 1 to 63 characters';
    END IF;
    IF NOT headrace.has_room_for_feed(to_regrole(quote_ident(current_user))::oid) THEN
        RAISE EXCEPTION USING ERRCODE = '53400', MESSAGE = 'the role has 1000 feeds and may have no more',
            HINT = 'Drop some with CALL headrace.drop_feed(name). They count for up to a minute after that.';
    END IF;
    -- One of a history that is gone stands in nobody's way.
    UPDATE headrace.feeds f SET name = NULL
     WHERE f.name = create_feed.name AND f.owner = to_regrole(quote_ident(current_user))
       AND f.history_id NOT IN (SELECT h.id FROM headrace.histories h);
    INSERT INTO headrace.feeds (name, history_id, txid) VALUES (name, kept.id, coalesce(since, last));
EXCEPTION WHEN unique_violation THEN
    RAISE EXCEPTION USING ERRCODE = '42710', MESSAGE = format('feed "%s" already exists', name);
END
$$;
