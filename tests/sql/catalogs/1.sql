-- Schema headrace as commit cf91307 left it (catalog 1): with a view that has a history, a point and a feed, and a view of that.
-- Of pg_dump --schema=headrace --no-owner --inserts, without its settings and empty lines.
SET check_function_bodies = false;
SELECT pg_catalog.set_config('search_path', '', false);
CREATE SCHEMA headrace;
COMMENT ON SCHEMA headrace IS 'Headrace: incrementally maintained views. Remove with `headrace uninstall`.';
CREATE PROCEDURE headrace.add_worker(IN name text)
    LANGUAGE plpgsql
    AS $$
DECLARE
    command bigint;
    seen    pg_catalog.text;
    done    boolean := false;
BEGIN
    COMMIT;
    command := headrace.submit('add_worker', pg_catalog.jsonb_build_object('name', name),
                               headrace.captured_settings());
    COMMIT;
    WHILE NOT done LOOP
        SELECT a.seen, a.done INTO seen, done FROM headrace.await_command(command, seen) a;
        COMMIT;
    END LOOP;
END
$$;
CREATE PROCEDURE headrace.alter_view(IN name text, IN query text)
    LANGUAGE plpgsql
    AS $$
DECLARE
    command bigint;
    seen    pg_catalog.text;
    done    boolean := false;
BEGIN
    COMMIT;
    command := headrace.submit('alter_view', pg_catalog.jsonb_build_object('name', name, 'query', query),
                               headrace.captured_settings());
    COMMIT;
    WHILE NOT done LOOP
        SELECT a.seen, a.done INTO seen, done FROM headrace.await_command(command, seen) a;
        COMMIT;
    END LOOP;
END
$$;
CREATE FUNCTION headrace.await_command(command bigint, INOUT seen text, OUT done boolean) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    c       headrace.commands;
    waited  int := 0;
    code    text;
    what    text;
BEGIN
    PERFORM pg_try_advisory_xact_lock_shared(1212437059, (command % 2147483647)::int);
    LOOP
        -- Superusers see those of everybody.
        SELECT * INTO c FROM headrace.commands x
         WHERE x.id = command AND x.caller = quote_ident(CURRENT_USER)::regrole::oid;
        IF NOT FOUND THEN
            RAISE EXCEPTION USING ERRCODE = '42704',
                MESSAGE = format('command %s does not exist', command);
        END IF;
        IF c.progress ->> 'text' IS DISTINCT FROM seen AND c.progress ? 'text' THEN
            seen := c.progress ->> 'text';
            RAISE NOTICE '%', seen;
        END IF;
        EXIT WHEN c.status IN ('done', 'failed');
        IF waited >= 50 THEN
            IF NOT headrace.engine_running() THEN
                RAISE EXCEPTION USING ERRCODE = '57P03',
                    MESSAGE = 'headrace is not running',
                    DETAIL = 'The engine went away while the command was under way; it ends what can be ended when it is back.',
                    HINT = 'See headrace.list_views() once it runs again.';
            END IF;
            done := false;
            RETURN;
        END IF;
        waited := waited + 1;
        -- Some commands take milliseconds, others minutes.
        PERFORM pg_sleep(CASE WHEN waited < 10 THEN 0.003 ELSE 0.02 END);
    END LOOP;
    IF c.status = 'failed' THEN
        -- An option of RAISE cannot be NULL, and an empty DETAIL would be shown.
        code := coalesce(c.error ->> 'C', 'XX000');
        what := coalesce(c.error ->> 'M', 'unknown error');
        IF c.error ? 'D' AND c.error ? 'H' THEN
            RAISE EXCEPTION USING ERRCODE = code, MESSAGE = what,
                DETAIL = c.error ->> 'D', HINT = c.error ->> 'H';
        ELSIF c.error ? 'D' THEN
            RAISE EXCEPTION USING ERRCODE = code, MESSAGE = what, DETAIL = c.error ->> 'D';
        ELSIF c.error ? 'H' THEN
            RAISE EXCEPTION USING ERRCODE = code, MESSAGE = what, HINT = c.error ->> 'H';
        END IF;
        RAISE EXCEPTION USING ERRCODE = code, MESSAGE = what;
    END IF;
    done := true;
END
$$;
CREATE FUNCTION headrace.captured_settings() RETURNS jsonb
    LANGUAGE sql STABLE
    AS $$ SELECT pg_catalog.jsonb_object_agg(s.name, pg_catalog.current_setting(s.name)) FROM pg_catalog.unnest('{TimeZone, DateStyle, IntervalStyle, extra_float_digits, bytea_output, lc_monetary, lc_numeric, lc_time, xmloption, xmlbinary, default_text_search_config, timezone_abbreviations, quote_all_identifiers, standard_conforming_strings, backslash_quote, array_nulls, transform_null_equals, search_path}'::pg_catalog.text[]) AS s (name) $$;
CREATE PROCEDURE headrace.check_view(IN query text, INOUT plan text DEFAULT NULL::text)
    LANGUAGE plpgsql
    AS $$
DECLARE
    command bigint;
    seen    pg_catalog.text;
    done    boolean := false;
BEGIN
    COMMIT;
    command := headrace.submit('check_view', pg_catalog.jsonb_build_object('query', query),
                               headrace.captured_settings());
    COMMIT;
    WHILE NOT done LOOP
        SELECT a.seen, a.done INTO seen, done FROM headrace.await_command(command, seen) a;
        COMMIT;
    END LOOP;
    plan := (headrace.command_result(command) OPERATOR(pg_catalog.->) 0) OPERATOR(pg_catalog.->>) 'plan';
END
$$;
CREATE FUNCTION headrace.command_result(command bigint) RETURNS jsonb
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT c.result FROM headrace.commands c
     WHERE c.id = command AND c.caller = quote_ident(CURRENT_USER)::regrole::oid
$$;
CREATE FUNCTION headrace.connection_points(OUT name text, OUT view text, OUT history interval, OUT storage_key text, OUT since timestamp with time zone, OUT attached text[]) RETURNS SETOF record
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    AS $$
    SELECT p.name, format('%I.%I', v.schema_name, v.view_name), p.keep, p.storage_key::text,
           CASE WHEN p.keep IS NOT NULL THEN h.first_at END,
           ARRAY(SELECT format('%I.%I', a.schema_name, a.view_name)
                   FROM headrace.view_uses u JOIN headrace.views a ON a.id = u.view_id
                  WHERE u.result_oid = v.result_oid ORDER BY 1)
      FROM headrace.points p JOIN headrace.views v ON v.id = p.view_id  -- row security decides
      LEFT JOIN headrace.histories h ON h.view_id = p.view_id
     ORDER BY p.name
$$;
CREATE PROCEDURE headrace.create_connection_point(IN name text, IN view text, IN at text DEFAULT NULL::text, IN history text DEFAULT NULL::text, IN storage_key text DEFAULT NULL::text)
    LANGUAGE plpgsql
    AS $$
DECLARE
    command bigint;
    seen    pg_catalog.text;
    done    boolean := false;
BEGIN
    COMMIT;
    command := headrace.submit('create_connection_point', pg_catalog.jsonb_build_object('name', name, 'view', view, 'at', at, 'history', history, 'storage_key', storage_key),
                               headrace.captured_settings());
    COMMIT;
    WHILE NOT done LOOP
        SELECT a.seen, a.done INTO seen, done FROM headrace.await_command(command, seen) a;
        COMMIT;
    END LOOP;
END
$$;
CREATE PROCEDURE headrace.create_feed(IN name text, IN view regclass, IN since bigint DEFAULT NULL::bigint)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
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
    -- One of a history that is gone stands in nobody's way.
    UPDATE headrace.feeds f SET name = NULL
     WHERE f.name = create_feed.name AND f.owner = to_regrole(quote_ident(current_user))
       AND f.history_id NOT IN (SELECT h.id FROM headrace.histories h);
    INSERT INTO headrace.feeds (name, history_id, txid) VALUES (name, kept.id, coalesce(since, last));
EXCEPTION WHEN unique_violation THEN
    RAISE EXCEPTION USING ERRCODE = '42710', MESSAGE = format('feed "%s" already exists', name);
END
$$;
CREATE PROCEDURE headrace.create_index(IN view text, IN definition text)
    LANGUAGE plpgsql
    AS $$
DECLARE
    command bigint;
    seen    pg_catalog.text;
    done    boolean := false;
BEGIN
    COMMIT;
    command := headrace.submit('create_index', pg_catalog.jsonb_build_object('view', view, 'definition', definition),
                               headrace.captured_settings());
    COMMIT;
    WHILE NOT done LOOP
        SELECT a.seen, a.done INTO seen, done FROM headrace.await_command(command, seen) a;
        COMMIT;
    END LOOP;
END
$$;
CREATE PROCEDURE headrace.create_view(IN name text, IN query text, IN options jsonb DEFAULT '{}'::jsonb)
    LANGUAGE plpgsql
    AS $$
DECLARE
    command bigint;
    seen    pg_catalog.text;
    done    boolean := false;
BEGIN
    COMMIT;
    command := headrace.submit('create_view', pg_catalog.jsonb_build_object('name', name, 'query', query, 'options', options),
                               headrace.captured_settings());
    COMMIT;
    WHILE NOT done LOOP
        SELECT a.seen, a.done INTO seen, done FROM headrace.await_command(command, seen) a;
        COMMIT;
    END LOOP;
END
$$;
CREATE PROCEDURE headrace.drop_connection_point(IN name text)
    LANGUAGE plpgsql
    AS $$
DECLARE
    command bigint;
    seen    pg_catalog.text;
    done    boolean := false;
BEGIN
    COMMIT;
    command := headrace.submit('drop_connection_point', pg_catalog.jsonb_build_object('name', name),
                               headrace.captured_settings());
    COMMIT;
    WHILE NOT done LOOP
        SELECT a.seen, a.done INTO seen, done FROM headrace.await_command(command, seen) a;
        COMMIT;
    END LOOP;
END
$$;
CREATE PROCEDURE headrace.drop_feed(IN name text)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    AS $$
DECLARE
    feed headrace.feeds;
BEGIN
    feed := headrace.feed_of(drop_feed.name);
    UPDATE headrace.feeds f SET name = NULL WHERE f.id = feed.id;
END
$$;
CREATE PROCEDURE headrace.drop_index(IN name text)
    LANGUAGE plpgsql
    AS $$
DECLARE
    command bigint;
    seen    pg_catalog.text;
    done    boolean := false;
BEGIN
    COMMIT;
    command := headrace.submit('drop_index', pg_catalog.jsonb_build_object('name', name),
                               headrace.captured_settings());
    COMMIT;
    WHILE NOT done LOOP
        SELECT a.seen, a.done INTO seen, done FROM headrace.await_command(command, seen) a;
        COMMIT;
    END LOOP;
END
$$;
CREATE PROCEDURE headrace.drop_view(IN name text, IN if_exists boolean DEFAULT false)
    LANGUAGE plpgsql
    AS $$
DECLARE
    command bigint;
    seen    pg_catalog.text;
    done    boolean := false;
BEGIN
    COMMIT;
    command := headrace.submit('drop_view', pg_catalog.jsonb_build_object('name', name, 'if_exists', if_exists),
                               headrace.captured_settings());
    COMMIT;
    WHILE NOT done LOOP
        SELECT a.seen, a.done INTO seen, done FROM headrace.await_command(command, seen) a;
        COMMIT;
    END LOOP;
END
$$;
CREATE FUNCTION headrace.engine_running() RETURNS boolean
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT EXISTS (
        SELECT FROM headrace.meta m
          JOIN pg_stat_activity a
            ON m.value = a.pid || ' ' || extract(epoch FROM a.backend_start)
         WHERE m.key = 'commander')
$$;
CREATE FUNCTION headrace.explain_view(name_or_query text, stage text DEFAULT 'physical'::text) RETURNS TABLE(plan text)
    LANGUAGE plpgsql STABLE
    AS $$
DECLARE
    parts   pg_catalog.text[];
    stages  pg_catalog.jsonb;
BEGIN
    BEGIN
        parts := pg_catalog.parse_ident(name_or_query);
    EXCEPTION WHEN invalid_parameter_value THEN
        RAISE EXCEPTION USING ERRCODE = '0A000',
            MESSAGE = 'a query is explained only on the port of headrace, by a statement of its own',
            HINT = 'On the port of headrace, with autocommit on, write exactly SELECT * FROM headrace.explain_view(query);'
                   ' on any connection, CALL headrace.check_view(query) answers the plan. The name of a view may be explained anywhere.';
    END;
    SELECT v.explain INTO stages FROM headrace.views v
     WHERE v.view_name OPERATOR(pg_catalog.=) parts[pg_catalog.array_upper(parts, 1)]::pg_catalog.name
       AND CASE  -- CASE … WHEN 1 would look for an operator on the caller's path
           WHEN pg_catalog.array_length(parts, 1) OPERATOR(pg_catalog.=) 1 THEN v.schema_name OPERATOR(pg_catalog.=) ANY (pg_catalog.current_schemas(false))
           WHEN pg_catalog.array_length(parts, 1) OPERATOR(pg_catalog.=) 2 THEN v.schema_name OPERATOR(pg_catalog.=) parts[1]::pg_catalog.name
           ELSE false END
     ORDER BY pg_catalog.array_position(pg_catalog.current_schemas(false), v.schema_name) LIMIT 1;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = '42P01',
            MESSAGE = pg_catalog.format('view "%s" does not exist', name_or_query),
            HINT = 'See headrace.list_views().';
    END IF;
    IF (stages OPERATOR(pg_catalog.->>) stage) IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22023',
            MESSAGE = pg_catalog.format('view "%s" has no plan of stage "%s"', name_or_query, stage),
            HINT = pg_catalog.format('Stages: %s.', (SELECT pg_catalog.string_agg(k, ', ' ORDER BY k)
                                       FROM pg_catalog.jsonb_object_keys(stages) k));
    END IF;
    RETURN QUERY SELECT t FROM pg_catalog.regexp_split_to_table(
        pg_catalog.rtrim(stages OPERATOR(pg_catalog.->>) stage, E'\n'), E'\n') t;
END
$$;
CREATE PROCEDURE headrace.fail_batch(IN txid bigint)
    LANGUAGE plpgsql
    AS $$
DECLARE
    command bigint;
    seen    pg_catalog.text;
    done    boolean := false;
BEGIN
    COMMIT;
    command := headrace.submit('fail_batch', pg_catalog.jsonb_build_object('txid', txid),
                               headrace.captured_settings());
    COMMIT;
    WHILE NOT done LOOP
        SELECT a.seen, a.done INTO seen, done FROM headrace.await_command(command, seen) a;
        COMMIT;
    END LOOP;
END
$$;
CREATE PROCEDURE headrace.feed_ack(IN name text, IN txid bigint)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    AS $$
#variable_conflict use_column
DECLARE
    feed headrace.feeds;
    kept headrace.histories;
    last bigint;
BEGIN
    feed := headrace.feed_of(feed_ack.name);
    SELECT h.* INTO kept FROM headrace.histories h WHERE h.id = feed.history_id;
    SELECT p.txid + kept.shift INTO last FROM headrace.progress p WHERE p.view_id = kept.view_id;
    IF feed_ack.txid BETWEEN feed.txid AND last THEN
        UPDATE headrace.feeds f SET txid = feed_ack.txid WHERE f.id = feed.id AND f.txid <= feed_ack.txid;
        RETURN;
    END IF;
    RAISE EXCEPTION USING ERRCODE = '22023',
        MESSAGE = format('feed "%s" cannot move to txid %s', feed_ack.name, coalesce(feed_ack.txid::text, 'NULL')),
        DETAIL = format('It is at txid %s, its view at %s.', feed.txid, last);
END
$$;
CREATE TABLE headrace.feeds (
    id bigint NOT NULL,
    name text,
    history_id bigint NOT NULL,
    owner oid DEFAULT (to_regrole(quote_ident((CURRENT_USER)::text)))::oid NOT NULL,
    txid bigint NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT feeds_name_check CHECK (((length(name) >= 1) AND (length(name) <= 63)))
);
CREATE FUNCTION headrace.feed_of(name text) RETURNS headrace.feeds
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
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
CREATE FUNCTION headrace.feed_read(name text, max bigint DEFAULT 10000) RETURNS TABLE(txid bigint, lsn pg_lsn, commit_at timestamp with time zone, weight bigint, data text)
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    AS $$
#variable_conflict use_column
DECLARE
    feed  headrace.feeds;
    kept  headrace.histories;
    total bigint := 0;
    bound bigint;
    part  record;
BEGIN
    feed := headrace.feed_of(feed_read.name);
    SELECT h.* INTO kept FROM headrace.histories h WHERE h.id = feed.history_id;
    IF kept.id IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = format('permission denied for the view of feed "%s"', feed.name),
            DETAIL = 'Who may read a whole view may read its changes. The view, or its history, may also be gone.';
    END IF;
    IF feed.txid < kept.first_txid THEN
        PERFORM headrace.history_lost(kept.result_oid, format('txid %s, which feed "%s" has acknowledged', feed.txid, feed.name),
                                      headrace.view_txid(kept.result_oid));
    END IF;
    FOR part IN SELECT c.txid, c.row_count FROM headrace.history c
                 WHERE c.history_id = kept.id AND c.txid > feed.txid ORDER BY c.txid, c.part LOOP
        EXIT WHEN total >= feed_read.max;  -- of its txid, all is read below
        bound := part.txid;
        total := total + part.row_count;
    END LOOP;
    RETURN QUERY
        SELECT c.txid, c.lsn, c.commit_at, r.weight, r.data
          FROM headrace.history c
         CROSS JOIN LATERAL unnest(c.weights, c.data) WITH ORDINALITY AS r (weight, data, place)
         WHERE c.history_id = kept.id AND c.txid > feed.txid AND c.txid <= bound
         ORDER BY c.txid, c.part, r.place;
END
$$;
CREATE FUNCTION headrace.history_lost(view regclass, wanted text, last bigint) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    AS $_$
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
$_$;
CREATE TABLE headrace.histories (
    id bigint NOT NULL,
    view_id bigint NOT NULL,
    result_oid oid NOT NULL,
    keep interval NOT NULL,
    shift bigint DEFAULT 0 NOT NULL,
    first_txid bigint,
    first_lsn pg_lsn,
    first_at timestamp with time zone
);
CREATE FUNCTION headrace.history_of(view regclass) RETURNS headrace.histories
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    AS $$
DECLARE
    kept headrace.histories;
BEGIN
    SELECT h.* INTO kept FROM headrace.histories h WHERE h.result_oid = view::oid;
    IF kept.first_txid IS NOT NULL THEN
        RETURN kept;
    ELSIF kept.id IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format('the history of view %s has not begun', view),
            DETAIL = 'It begins when the engine writes the view.';
    ELSIF NOT has_table_privilege(view, 'SELECT') THEN
        RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = format('permission denied for view %s', view),
            DETAIL = 'Who may read a whole view may read its changes.';
    ELSIF row_security_active(view) THEN
        RAISE EXCEPTION USING ERRCODE = '0A000', MESSAGE = format('table %s has row-level security', view),
            DETAIL = 'Its changes are not told to those who may not read all of its rows.';
    END IF;
    RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format('no history is kept of %s', view),
        HINT = format('If it is a view, its owner can CALL headrace.set_history(%L, ''2 hours'').', view);
END
$$;
CREATE FUNCTION headrace.history_times(times numeric) RETURNS bigint
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    IF times < 0 THEN
        RAISE EXCEPTION USING ERRCODE = 'XX001', MESSAGE = 'the view''s table is not what its changes have made of it',
            DETAIL = 'Somebody else has written it.',
            HINT = 'CALL headrace.set_history(view, NULL) and CALL headrace.resync_view(view), then keep a history again.';
    END IF;
    RETURN times;
END
$$;
CREATE FUNCTION headrace.list_views(OUT name text, OUT status text, OUT message text, OUT query text, OUT rows bigint, OUT lag_ms bigint, OUT lag_bytes bigint, OUT txid bigint, OUT lsn pg_lsn) RETURNS SETOF record
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT s.name, s.status, coalesce(s.message, nullif(concat_ws('; ', headrace.view_message(v.id), v.note), '')), v.query, s.rows, s.lag_ms,
           s.lag_bytes, s.txid, s.lsn
      FROM headrace.view_states() WITH ORDINALITY s
      LEFT JOIN headrace.views v ON v.id = s.id  -- row security decides
     ORDER BY s.ordinality
$$;
CREATE FUNCTION headrace.memory(OUT part text, OUT view text, OUT bytes bigint, OUT limit_bytes bigint) RETURNS SETOF record
    LANGUAGE plpgsql STABLE
    AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '0A000',
        MESSAGE = 'memory is answered only on the port of headrace, as a statement of its own',
        DETAIL = 'Here it is part of a larger query, inside of a transaction, or on a direct connection: a function cannot ask the engine.',
        HINT = 'On the port of headrace, with autocommit on, write exactly SELECT * FROM headrace.memory();'
               ' on any connection, CALL headrace.show_memory() answers the rows as one JSON array.';
END
$$;
CREATE PROCEDURE headrace.pause_view(IN name text)
    LANGUAGE plpgsql
    AS $$
DECLARE
    command bigint;
    seen    pg_catalog.text;
    done    boolean := false;
BEGIN
    COMMIT;
    command := headrace.submit('pause_view', pg_catalog.jsonb_build_object('name', name),
                               headrace.captured_settings());
    COMMIT;
    WHILE NOT done LOOP
        SELECT a.seen, a.done INTO seen, done FROM headrace.await_command(command, seen) a;
        COMMIT;
    END LOOP;
END
$$;
CREATE FUNCTION headrace.queues(OUT queue text, OUT reader text, OUT node text, OUT queued_rows bigint, OUT queued_bytes bigint, OUT blocks bigint, OUT contiguous boolean, OUT resident_bytes bigint, OUT base_txid bigint, OUT front_txid bigint, OUT tail_txid bigint, OUT head_txid bigint, OUT behind_bytes bigint, OUT kind text, OUT priority bigint, OUT resident_pct bigint, OUT running boolean) RETURNS SETOF record
    LANGUAGE plpgsql STABLE
    AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '0A000',
        MESSAGE = 'queues is answered only on the port of headrace, as a statement of its own',
        DETAIL = 'Here it is part of a larger query, inside of a transaction, or on a direct connection: a function cannot ask the engine.',
        HINT = 'On the port of headrace, with autocommit on, write exactly SELECT * FROM headrace.queues();'
               ' on any connection, CALL headrace.show_queues() answers the rows as one JSON array.';
END
$$;
CREATE PROCEDURE headrace.remove_worker(IN name text)
    LANGUAGE plpgsql
    AS $$
DECLARE
    command bigint;
    seen    pg_catalog.text;
    done    boolean := false;
BEGIN
    COMMIT;
    command := headrace.submit('remove_worker', pg_catalog.jsonb_build_object('name', name),
                               headrace.captured_settings());
    COMMIT;
    WHILE NOT done LOOP
        SELECT a.seen, a.done INTO seen, done FROM headrace.await_command(command, seen) a;
        COMMIT;
    END LOOP;
END
$$;
CREATE PROCEDURE headrace.rename_view(IN name text, IN new_name text)
    LANGUAGE plpgsql
    AS $$
DECLARE
    command bigint;
    seen    pg_catalog.text;
    done    boolean := false;
BEGIN
    COMMIT;
    command := headrace.submit('rename_view', pg_catalog.jsonb_build_object('name', name, 'new_name', new_name),
                               headrace.captured_settings());
    COMMIT;
    WHILE NOT done LOOP
        SELECT a.seen, a.done INTO seen, done FROM headrace.await_command(command, seen) a;
        COMMIT;
    END LOOP;
END
$$;
CREATE PROCEDURE headrace.resume_view(IN name text)
    LANGUAGE plpgsql
    AS $$
DECLARE
    command bigint;
    seen    pg_catalog.text;
    done    boolean := false;
BEGIN
    COMMIT;
    command := headrace.submit('resume_view', pg_catalog.jsonb_build_object('name', name),
                               headrace.captured_settings());
    COMMIT;
    WHILE NOT done LOOP
        SELECT a.seen, a.done INTO seen, done FROM headrace.await_command(command, seen) a;
        COMMIT;
    END LOOP;
END
$$;
CREATE PROCEDURE headrace.resync_view(IN name text)
    LANGUAGE plpgsql
    AS $$
DECLARE
    command bigint;
    seen    pg_catalog.text;
    done    boolean := false;
BEGIN
    COMMIT;
    command := headrace.submit('resync_view', pg_catalog.jsonb_build_object('name', name),
                               headrace.captured_settings());
    COMMIT;
    WHILE NOT done LOOP
        SELECT a.seen, a.done INTO seen, done FROM headrace.await_command(command, seen) a;
        COMMIT;
    END LOOP;
END
$$;
CREATE PROCEDURE headrace.set_history(IN name text, IN keep text DEFAULT NULL::text)
    LANGUAGE plpgsql
    AS $$
DECLARE
    command bigint;
    seen    pg_catalog.text;
    done    boolean := false;
BEGIN
    COMMIT;
    command := headrace.submit('set_history', pg_catalog.jsonb_build_object('name', name, 'keep', keep),
                               headrace.captured_settings());
    COMMIT;
    WHILE NOT done LOOP
        SELECT a.seen, a.done INTO seen, done FROM headrace.await_command(command, seen) a;
        COMMIT;
    END LOOP;
END
$$;
CREATE PROCEDURE headrace.set_latency(IN name text, IN latency_ms bigint DEFAULT '0'::bigint)
    LANGUAGE plpgsql
    AS $$
DECLARE
    command bigint;
    seen    pg_catalog.text;
    done    boolean := false;
BEGIN
    COMMIT;
    command := headrace.submit('set_latency', pg_catalog.jsonb_build_object('name', name, 'latency_ms', latency_ms),
                               headrace.captured_settings());
    COMMIT;
    WHILE NOT done LOOP
        SELECT a.seen, a.done INTO seen, done FROM headrace.await_command(command, seen) a;
        COMMIT;
    END LOOP;
END
$$;
CREATE PROCEDURE headrace.set_owner(IN name text, IN role text)
    LANGUAGE plpgsql
    AS $$
DECLARE
    command bigint;
    seen    pg_catalog.text;
    done    boolean := false;
BEGIN
    COMMIT;
    command := headrace.submit('set_owner', pg_catalog.jsonb_build_object('name', name, 'role', role),
                               headrace.captured_settings());
    COMMIT;
    WHILE NOT done LOOP
        SELECT a.seen, a.done INTO seen, done FROM headrace.await_command(command, seen) a;
        COMMIT;
    END LOOP;
END
$$;
CREATE PROCEDURE headrace.set_placement(IN name text, IN worker text)
    LANGUAGE plpgsql
    AS $$
DECLARE
    command bigint;
    seen    pg_catalog.text;
    done    boolean := false;
BEGIN
    COMMIT;
    command := headrace.submit('set_placement', pg_catalog.jsonb_build_object('name', name, 'worker', worker),
                               headrace.captured_settings());
    COMMIT;
    WHILE NOT done LOOP
        SELECT a.seen, a.done INTO seen, done FROM headrace.await_command(command, seen) a;
        COMMIT;
    END LOOP;
END
$$;
CREATE PROCEDURE headrace.show_memory(INOUT memory jsonb DEFAULT NULL::jsonb)
    LANGUAGE plpgsql
    AS $$
DECLARE
    command bigint;
    seen    pg_catalog.text;
    done    boolean := false;
BEGIN
    COMMIT;
    command := headrace.submit('memory', pg_catalog.jsonb_build_object(),
                               headrace.captured_settings());
    COMMIT;
    WHILE NOT done LOOP
        SELECT a.seen, a.done INTO seen, done FROM headrace.await_command(command, seen) a;
        COMMIT;
    END LOOP;
    memory := headrace.command_result(command);
END
$$;
CREATE PROCEDURE headrace.show_queues(INOUT queues jsonb DEFAULT NULL::jsonb)
    LANGUAGE plpgsql
    AS $$
DECLARE
    command bigint;
    seen    pg_catalog.text;
    done    boolean := false;
BEGIN
    COMMIT;
    command := headrace.submit('queues', pg_catalog.jsonb_build_object(),
                               headrace.captured_settings());
    COMMIT;
    WHILE NOT done LOOP
        SELECT a.seen, a.done INTO seen, done FROM headrace.await_command(command, seen) a;
        COMMIT;
    END LOOP;
    queues := headrace.command_result(command);
END
$$;
CREATE PROCEDURE headrace.show_view_stats(IN name text, INOUT stats jsonb DEFAULT NULL::jsonb)
    LANGUAGE plpgsql
    AS $$
DECLARE
    command bigint;
    seen    pg_catalog.text;
    done    boolean := false;
BEGIN
    COMMIT;
    command := headrace.submit('view_stats', pg_catalog.jsonb_build_object('name', name),
                               headrace.captured_settings());
    COMMIT;
    WHILE NOT done LOOP
        SELECT a.seen, a.done INTO seen, done FROM headrace.await_command(command, seen) a;
        COMMIT;
    END LOOP;
    stats := headrace.command_result(command);
END
$$;
CREATE PROCEDURE headrace.show_workers(INOUT workers jsonb DEFAULT NULL::jsonb)
    LANGUAGE plpgsql
    AS $$
DECLARE
    command bigint;
    seen    pg_catalog.text;
    done    boolean := false;
BEGIN
    COMMIT;
    command := headrace.submit('workers', pg_catalog.jsonb_build_object(),
                               headrace.captured_settings());
    COMMIT;
    WHILE NOT done LOOP
        SELECT a.seen, a.done INTO seen, done FROM headrace.await_command(command, seen) a;
        COMMIT;
    END LOOP;
    workers := headrace.command_result(command);
END
$$;
CREATE FUNCTION headrace.stamp_command() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    -- A subscription's worker brings commands that were meant for another database.
    IF current_setting('session_replication_role') = 'replica' THEN
        RETURN NULL;
    END IF;
    NEW.caller := quote_ident(CURRENT_USER)::regrole;
    NEW.status := 'pending';
    NEW.created_at := now();
    -- How many of them are carried out at once is a setting; this keeps the table small.
    IF (SELECT count(*) FROM headrace.commands c
         WHERE c.caller = NEW.caller AND c.status IN ('pending', 'running')) >= 1000 THEN
        RAISE EXCEPTION USING ERRCODE = '53400',
            MESSAGE = 'role ' || quote_ident(CURRENT_USER) || ' has 1000 calls that wait and may have no more',
            HINT = 'Wait for some.';
    END IF;
    RETURN NEW;
END
$$;
CREATE FUNCTION headrace.submit(procedure text, arguments jsonb, settings jsonb) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    command bigint;
    waited  int := 0;
BEGIN
    IF pg_column_size(arguments) > 8388608 THEN
        RAISE EXCEPTION USING ERRCODE = '54000',
            MESSAGE = 'the arguments of the call are too large',
            DETAIL = 'All together may have 8 MB.';
    END IF;
    -- A restart of the engine takes a moment.
    WHILE NOT headrace.engine_running() LOOP
        IF waited >= 30 THEN
            RAISE EXCEPTION USING ERRCODE = '57P03',
                MESSAGE = 'headrace is not running',
                DETAIL = 'No engine is connected to this database.',
                HINT = 'Start it with `headrace start --source …` and call again.';
        END IF;
        waited := waited + 1;
        PERFORM pg_sleep(0.1);
        PERFORM pg_stat_clear_snapshot();
    END LOOP;
    INSERT INTO headrace.commands AS c (procedure, arguments, settings)
    VALUES (procedure, arguments, settings)
    RETURNING c.id INTO command;
    -- It is looked for without that as well, less often; a full queue would fail the COMMIT.
    IF pg_notification_queue_usage() < 0.5 THEN
        PERFORM pg_notify('headrace_commands', command::text);
    END IF;
    RETURN command;
END
$$;
CREATE FUNCTION headrace.table_mark(wanted oid) RETURNS text
    LANGUAGE plpgsql STABLE
    AS $$
BEGIN
    RETURN (
        SELECT ROW(c.xmin,
                   ARRAY(SELECT a.xmin FROM pg_catalog.pg_attribute a
                          WHERE a.attrelid OPERATOR(pg_catalog.=) wanted
                            AND a.attnum OPERATOR(pg_catalog.>) 0),
                   CASE WHEN c.relhastriggers THEN
                   ARRAY(SELECT t.xmin FROM pg_catalog.pg_trigger t
                          WHERE t.tgrelid OPERATOR(pg_catalog.=) wanted) END,
                   CASE WHEN c.relhasrules THEN
                   ARRAY(SELECT r.xmin FROM pg_catalog.pg_rewrite r
                          WHERE r.ev_class OPERATOR(pg_catalog.=) wanted) END,
                   CASE WHEN c.relhassubclass THEN
                   ARRAY(SELECT h.xmin FROM pg_catalog.pg_inherits h
                          WHERE h.inhparent OPERATOR(pg_catalog.=) wanted) END)::pg_catalog.text
          FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) wanted);
END
$$;
CREATE PROCEDURE headrace.verify(IN name text, INOUT differences jsonb DEFAULT NULL::jsonb)
    LANGUAGE plpgsql
    AS $$
DECLARE
    command bigint;
    seen    pg_catalog.text;
    done    boolean := false;
BEGIN
    COMMIT;
    command := headrace.submit('verify_view', pg_catalog.jsonb_build_object('name', name),
                               headrace.captured_settings());
    COMMIT;
    WHILE NOT done LOOP
        SELECT a.seen, a.done INTO seen, done FROM headrace.await_command(command, seen) a;
        COMMIT;
    END LOOP;
    differences := headrace.command_result(command);
END
$$;
CREATE FUNCTION headrace.verify_view(name text, OUT surplus bigint, OUT missing bigint, OUT contents text) RETURNS SETOF record
    LANGUAGE plpgsql STABLE
    AS $_$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '0A000',
        MESSAGE = 'verify_view is answered only on the port of headrace, as a statement of its own',
        DETAIL = 'Here it is part of a larger query, inside of a transaction, or on a direct connection: the proof takes a later snapshot than this statement reads by.',
        HINT = pg_catalog.format(
            'On the port of headrace, with autocommit on, write exactly SELECT * FROM headrace.verify_view(%1$L)'
            ' and count or filter its rows in the client; on any connection, CALL headrace.verify(%1$L)'
            ' answers them as one JSON array, [] if there are none.', name);
END
$_$;
CREATE FUNCTION headrace.view_as_of(view anyelement, txid bigint DEFAULT NULL::bigint, lsn pg_lsn DEFAULT NULL::pg_lsn, at timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS SETOF anyelement
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET "TimeZone" TO 'UTC'
    SET "DateStyle" TO 'ISO, YMD'
    SET "IntervalStyle" TO 'postgres'
    SET extra_float_digits TO '3'
    SET bytea_output TO 'hex'
    SET lc_monetary TO 'C'
    SET xmloption TO 'content'
    SET array_nulls TO 'on'
    AS $_$
#variable_conflict use_column
DECLARE
    named  regclass;
    kept   headrace.histories;
    moved  headrace.progress;
    wanted text;
    bound  bigint;
BEGIN
    SELECT t.typrelid INTO named FROM pg_type t JOIN pg_class c ON c.oid = t.typrelid
     WHERE t.oid = pg_typeof(view) AND c.relkind = 'r';
    IF named IS NULL OR num_nonnulls(view_as_of.txid, view_as_of.lsn, view_as_of.at) <> 1 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'view_as_of takes the row type of a view, and one of txid, lsn, at',
            HINT = 'Write for example SELECT * FROM headrace.view_as_of(NULL::v, txid => 42).';
    END IF;
    kept := headrace.history_of(named);
    SELECT p.* INTO moved FROM headrace.progress p WHERE p.view_id = kept.view_id;
    IF view_as_of.txid IS NOT NULL THEN
        wanted := format('txid %s', view_as_of.txid);
        bound := view_as_of.txid;
    ELSIF view_as_of.lsn IS NOT NULL THEN
        wanted := format('LSN %s', view_as_of.lsn);
        IF view_as_of.lsn BETWEEN kept.first_lsn AND moved.lsn THEN
            SELECT coalesce(min(c.txid) - 1, moved.txid + kept.shift) INTO bound FROM headrace.history c
             WHERE c.history_id = kept.id AND c.txid > kept.first_txid AND c.lsn > view_as_of.lsn;
        END IF;
    ELSE
        wanted := format('%s', view_as_of.at);
        IF view_as_of.at BETWEEN kept.first_at AND moved.source_commit_at THEN
            SELECT coalesce(min(c.txid) - 1, moved.txid + kept.shift) INTO bound FROM headrace.history c
             WHERE c.history_id = kept.id AND c.txid > kept.first_txid AND c.commit_at > view_as_of.at;
        END IF;
    END IF;
    IF bound IS NULL OR bound < kept.first_txid OR bound > moved.txid + kept.shift THEN
        PERFORM headrace.history_lost(named, wanted, moved.txid + kept.shift);
    END IF;
    RETURN QUERY EXECUTE format('
        SELECT (x.found).* FROM (
            SELECT r.image::%1$s AS found FROM (
                SELECT i.image, headrace.history_times(sum(i.weight)) AS times FROM (
                    SELECT (t.*)::text COLLATE "C" AS image, 1 AS weight FROM ONLY %1$s t
                    UNION ALL
                    SELECT (d.data::%1$s)::text COLLATE "C", -d.weight FROM headrace.history c
                     CROSS JOIN LATERAL unnest(c.weights, c.data) AS d (weight, data)
                     WHERE c.history_id = $1 AND c.txid > $2) i
                 GROUP BY i.image) r
             CROSS JOIN LATERAL generate_series(1, r.times)
            OFFSET 0) x', named) USING kept.id, bound;
END
$_$;
CREATE FUNCTION headrace.view_changes(view regclass, since bigint DEFAULT 0) RETURNS TABLE(txid bigint, lsn pg_lsn, commit_at timestamp with time zone, weight bigint, data text)
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    AS $$
#variable_conflict use_column
DECLARE
    kept headrace.histories;
    last bigint;
BEGIN
    kept := headrace.history_of(view);
    last := headrace.view_txid(view);
    IF since IS NULL OR since > last OR since <> 0 AND since < kept.first_txid THEN
        PERFORM headrace.history_lost(view, format('txid %s', coalesce(since::text, 'NULL')), last);
    END IF;
    RETURN QUERY
        SELECT c.txid, c.lsn, c.commit_at, r.weight, r.data
          FROM headrace.history c
         CROSS JOIN LATERAL unnest(c.weights, c.data) WITH ORDINALITY AS r (weight, data, place)
         WHERE c.history_id = kept.id AND c.txid > greatest(since, kept.first_txid)
         ORDER BY c.txid, c.part, r.place;
END
$$;
CREATE FUNCTION headrace.view_message(view_id bigint) RETURNS text
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT nullif(concat_ws(' ', nullif(concat_ws('; ',
               nullif(concat_ws(' at ', v.message, v.culprit), ''), v.detail, v.hint), ''), v.tried), '')
      FROM headrace.views v WHERE v.id = view_id
$$;
CREATE FUNCTION headrace.view_states(OUT id bigint, OUT name text, OUT status text, OUT message text, OUT rows bigint, OUT lag_ms bigint, OUT lag_bytes bigint, OUT txid bigint, OUT lsn pg_lsn) RETURNS SETOF record
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
    -- Who asks again and again in one transaction is to see who has gone meanwhile.
    SELECT pg_stat_clear_snapshot();
    SELECT v.id, format('%I.%I', v.schema_name, v.view_name), k.status,
           CASE WHEN k.orphan THEN format('the role that owned it was dropped; CALL headrace.set_owner(%L, role)'
                    ' gives it to another.', format('%I.%I', v.schema_name, v.view_name))
                WHEN k.status = v.status THEN NULL
                WHEN k.status = 'stopped' THEN 'no engine is connected to this database'
                WHEN k.status = 'starting' THEN 'the worker is not connected, or silent'
                ELSE format('result table "%s"."%s" was dropped; CALL headrace.resync_view(%L) fills it anew.',
                            v.schema_name, v.view_name, format('%I.%I', v.schema_name, v.view_name)) END,
           CASE WHEN c.reltuples >= 0 OR pg_stat_get_live_tuples(c.oid) > 0
                THEN greatest(c.reltuples::bigint, pg_stat_get_live_tuples(c.oid)) END,
           CASE WHEN p.lsn IS NULL THEN NULL
                WHEN k.covered >= w.lsn THEN 0
                WHEN k.status <> 'running' THEN k.since_ms
                WHEN s.confirmed >= p.lsn THEN greatest(s.flush_ms, e.busy_ms, 0)
                ELSE k.since_ms END,
           greatest(w.lsn - k.covered, 0)::bigint,
           p.txid, p.lsn
      FROM headrace.views v
      LEFT JOIN headrace.progress p ON p.view_id = v.id
      LEFT JOIN pg_class c ON c.oid = v.result_oid
      LEFT JOIN pg_roles o ON o.oid = v.owner
     CROSS JOIN (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                             ELSE pg_current_wal_lsn() END AS lsn) w
      LEFT JOIN (SELECT r.confirmed_flush_lsn AS confirmed,
                        (extract(epoch FROM a.flush_lag) * 1000)::bigint AS flush_ms
                   FROM headrace.meta m
                   JOIN pg_replication_slots r ON r.slot_name = m.value
                   LEFT JOIN pg_stat_replication a ON a.pid = r.active_pid
                  WHERE m.key = 'slot_name') s ON true
      LEFT JOIN (SELECT a.state IN ('active', 'disabled')
                        OR a.state_change > clock_timestamp() - interval '10 s' AS heard,
                        -- Since when its transaction runs, or (runtime/ownership.py) its batch.
                        (greatest(extract(epoch FROM clock_timestamp() - a.xact_start),
                                  extract(epoch FROM clock_timestamp())
                                  - substring(a.application_name FROM 'busy since ([0-9.]+)$')::numeric)
                         * 1000)::bigint AS busy_ms
                   FROM headrace.meta m
                   JOIN pg_stat_activity a
                     ON m.value = a.pid || ' ' || extract(epoch FROM a.backend_start)
                  WHERE m.key = 'worker') e ON true
     CROSS JOIN LATERAL (
         SELECT v.owner IS NOT NULL AND o.oid IS NULL AS orphan,
                CASE WHEN v.owner IS NOT NULL AND o.oid IS NULL THEN 'error'
                     WHEN v.status IN ('paused', 'error') THEN v.status
                     WHEN v.status = 'running' AND c.oid IS NULL THEN 'error'
                     WHEN e.heard AND (p.epoch > 0 OR v.status <> 'running') THEN v.status
                     WHEN e.heard IS NULL AND NOT headrace.engine_running() THEN 'stopped'
                     WHEN v.status = 'running' THEN 'starting'
                     ELSE v.status END AS status,
                CASE WHEN v.status = 'running' THEN greatest(p.lsn, s.confirmed)
                     ELSE p.lsn END AS covered,
                greatest(extract(epoch FROM clock_timestamp()
                    - coalesce(p.source_commit_at, p.applied_at, v.created_at)) * 1000, 0)::bigint
                    AS since_ms) k
     ORDER BY v.schema_name, v.view_name
$_$;
CREATE FUNCTION headrace.view_stats(name text, OUT node text, OUT collection text, OUT shared boolean, OUT worker text, OUT rows_in bigint, OUT rows_out bigint, OUT batches bigint, OUT busy_us bigint) RETURNS SETOF record
    LANGUAGE plpgsql STABLE
    AS $_$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '0A000',
        MESSAGE = 'view_stats is answered only on the port of headrace, as a statement of its own',
        DETAIL = 'Here it is part of a larger query, inside of a transaction, or on a direct connection: a function cannot ask the engine.',
        HINT = pg_catalog.format(
            'On the port of headrace, with autocommit on, write exactly SELECT * FROM headrace.view_stats(%1$L);'
            ' on any connection, CALL headrace.show_view_stats(%1$L) answers the rows as one JSON array.', name);
END
$_$;
CREATE FUNCTION headrace.view_txid(view regclass) RETURNS bigint
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    AS $$
DECLARE
    kept headrace.histories;
BEGIN
    kept := headrace.history_of(view);
    RETURN (SELECT p.txid + kept.shift FROM headrace.progress p WHERE p.view_id = kept.view_id);
END
$$;
CREATE PROCEDURE headrace.wait_for(IN name text, IN lsn pg_lsn DEFAULT NULL::pg_lsn, IN timeout interval DEFAULT NULL::interval)
    LANGUAGE plpgsql
    AS $$
DECLARE
    command bigint;
    seen    pg_catalog.text;
    done    boolean := false;
BEGIN
    COMMIT;
    command := headrace.submit('wait_for', pg_catalog.jsonb_build_object('name', name, 'lsn', lsn, 'timeout', timeout),
                               headrace.captured_settings());
    COMMIT;
    WHILE NOT done LOOP
        SELECT a.seen, a.done INTO seen, done FROM headrace.await_command(command, seen) a;
        COMMIT;
    END LOOP;
END
$$;
CREATE FUNCTION headrace.workers(OUT worker text, OUT state text, OUT pid bigint, OUT views bigint, OUT memory_bytes bigint, OUT since text) RETURNS SETOF record
    LANGUAGE plpgsql STABLE
    AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '0A000',
        MESSAGE = 'workers is answered only on the port of headrace, as a statement of its own',
        DETAIL = 'Here it is part of a larger query, inside of a transaction, or on a direct connection: a function cannot ask the engine.',
        HINT = 'On the port of headrace, with autocommit on, write exactly SELECT * FROM headrace.workers();'
               ' on any connection, CALL headrace.show_workers() answers the rows as one JSON array.';
END
$$;
CREATE TABLE headrace.commands (
    id bigint NOT NULL,
    procedure text NOT NULL,
    arguments jsonb NOT NULL,
    caller oid DEFAULT (quote_ident((CURRENT_USER)::text))::regrole NOT NULL,
    settings jsonb NOT NULL,
    status text DEFAULT 'pending'::text NOT NULL,
    progress jsonb,
    result jsonb,
    error jsonb,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    finished_at timestamp with time zone,
    CONSTRAINT commands_arguments_check CHECK ((pg_column_size(arguments) <= 8388608)),
    CONSTRAINT commands_procedure_check CHECK ((octet_length(procedure) <= 63)),
    CONSTRAINT commands_settings_check CHECK ((pg_column_size(settings) <= 65536)),
    CONSTRAINT commands_status_check CHECK ((status = ANY (ARRAY['pending'::text, 'running'::text, 'done'::text, 'failed'::text])))
);
ALTER TABLE headrace.commands ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME headrace.commands_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
ALTER TABLE headrace.feeds ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME headrace.feeds_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE SEQUENCE headrace.histories_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE headrace.histories_id_seq OWNED BY headrace.histories.id;
CREATE TABLE headrace.history (
    history_id bigint NOT NULL,
    txid bigint NOT NULL,
    part integer NOT NULL,
    lsn pg_lsn NOT NULL,
    commit_at timestamp with time zone NOT NULL,
    row_count integer NOT NULL,
    weights bigint[] NOT NULL,
    data text[] NOT NULL
);
CREATE TABLE headrace.made_schemas (
    schema_oid oid NOT NULL,
    owner oid NOT NULL
);
CREATE TABLE headrace.meta (
    key text NOT NULL,
    value text
);
CREATE TABLE headrace.nodes (
    name text NOT NULL,
    added_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT nodes_name_check CHECK (((name ~ '^[a-z][a-z0-9_]{0,19}$'::text) AND (name <> 'main'::text)))
);
CREATE TABLE headrace.points (
    name text NOT NULL,
    view_id bigint NOT NULL,
    keep interval,
    storage_key name,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT points_name_check CHECK (((length(name) >= 1) AND (length(name) <= 63)))
);
CREATE TABLE headrace.progress (
    view_id bigint NOT NULL,
    epoch bigint DEFAULT 0 NOT NULL,
    txid bigint DEFAULT 0 NOT NULL,
    attempt integer DEFAULT 0 NOT NULL,
    lsn pg_lsn,
    source_commit_at timestamp with time zone,
    applied_at timestamp with time zone
)
WITH (fillfactor='50');
CREATE TABLE headrace.view_tables (
    view_id bigint NOT NULL,
    table_oid oid NOT NULL,
    schema_name name NOT NULL,
    table_name name NOT NULL
);
CREATE TABLE headrace.view_uses (
    view_id bigint NOT NULL,
    result_oid oid NOT NULL
);
CREATE TABLE headrace.views (
    id bigint NOT NULL,
    schema_name name NOT NULL,
    view_name name NOT NULL,
    query text NOT NULL,
    columns jsonb,
    plan jsonb,
    explain jsonb,
    options jsonb DEFAULT '{}'::jsonb NOT NULL,
    settings jsonb DEFAULT '{}'::jsonb NOT NULL,
    owner regrole,
    result_oid oid,
    start_lsn pg_lsn,
    status text DEFAULT 'pending'::text NOT NULL,
    message text,
    sqlstate text,
    block boolean DEFAULT true NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    watched jsonb,
    canonical text,
    named jsonb,
    revision integer DEFAULT 0 NOT NULL,
    kept jsonb,
    detail text,
    hint text,
    culprit text,
    tried text,
    note text,
    CONSTRAINT views_status_check CHECK ((status = ANY (ARRAY['pending'::text, 'populating'::text, 'running'::text, 'paused'::text, 'error'::text, 'sink_error'::text])))
);
CREATE SEQUENCE headrace.views_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE headrace.views_id_seq OWNED BY headrace.views.id;
ALTER TABLE ONLY headrace.histories ALTER COLUMN id SET DEFAULT nextval('headrace.histories_id_seq'::regclass);
ALTER TABLE ONLY headrace.views ALTER COLUMN id SET DEFAULT nextval('headrace.views_id_seq'::regclass);
INSERT INTO headrace.feeds OVERRIDING SYSTEM VALUE VALUES (1, 'f', 1, 10, 0, '2026-11-24 08:40:26.284889+00');
INSERT INTO headrace.histories VALUES (1, 1, 16629, '02:00:00', 0, 0, '0/1910678', '2026-11-24 08:40:25.31091+00');
INSERT INTO headrace.history VALUES (1, 1, 0, '0/192EDA0', '2026-11-24 08:40:26.303839+00', 6, '{-1,1,-1,1,-1,1}', '{"(c0,17,442.00)","(c0,17,446.00)","(c2,17,425.00)","(c2,17,428.00)","(c1,16,408.00)","(c1,16,411.00)"}');
INSERT INTO headrace.meta VALUES ('version', '1');
INSERT INTO headrace.meta VALUES ('slot_name', 'headrace');
INSERT INTO headrace.meta VALUES ('worker', '30895 1795509624.330452');
INSERT INTO headrace.meta VALUES ('commander', '30908 1795509624.470116');
INSERT INTO headrace.points VALUES ('p', 1, NULL, 'country', '2026-11-24 08:40:26.210256+00');
INSERT INTO headrace.progress VALUES (1, 1, 1, 0, '0/192EDA0', '2026-11-24 08:40:26.303839+00', '2026-11-24 08:40:26.441762+00');
INSERT INTO headrace.progress VALUES (2, 1, 1, 0, '0/192EDA0', '2026-11-24 08:40:26.303839+00', '2026-11-24 08:40:26.44178+00');
INSERT INTO headrace.view_tables VALUES (1, 16385, 'public', 'customers');
INSERT INTO headrace.view_tables VALUES (1, 16392, 'public', 'orders');
INSERT INTO headrace.view_tables VALUES (2, 16385, 'public', 'customers');
INSERT INTO headrace.view_tables VALUES (2, 16392, 'public', 'orders');
INSERT INTO headrace.view_uses VALUES (2, 16629);
INSERT INTO headrace.views VALUES (1, 'public', 'revenue', 'SELECT c.country, count(*) AS orders, sum(o.amount) AS amount FROM orders o JOIN customers c ON c.id = o.customer_id GROUP BY c.country', '[{"oid": 25, "kind": "Field", "name": "country", "typmod": -1, "collation": 100}, {"oid": 20, "kind": "Field", "name": "orders", "typmod": -1, "collation": 0}, {"oid": 1700, "kind": "Field", "name": "amount", "typmod": -1, "collation": 0}]', '{"kind": "PhysicalPlan", "nodes": [{"id": "source_1", "key": [{"oid": 23, "kind": "SourceColumn", "name": "id", "attnum": 1, "typmod": -1, "collation": 0}], "kind": "Source", "schema": [{"oid": 23, "kind": "Field", "name": "customer_id", "typmod": -1, "collation": 0}, {"oid": 1700, "kind": "Field", "name": "amount", "typmod": 589830, "collation": 0}], "wanted": [], "columns": [{"oid": 23, "kind": "SourceColumn", "name": "customer_id", "attnum": 2, "typmod": -1, "collation": 0}, {"oid": 1700, "kind": "SourceColumn", "name": "amount", "attnum": 3, "typmod": 589830, "collation": 0}], "pushdown": [], "table_oid": 16392, "table_name": "orders", "schema_name": "public", "full_identity": false}, {"id": "source_2", "key": [{"oid": 23, "kind": "SourceColumn", "name": "id", "attnum": 1, "typmod": -1, "collation": 0}], "kind": "Source", "schema": [{"oid": 23, "kind": "Field", "name": "id", "typmod": -1, "collation": 0}, {"oid": 25, "kind": "Field", "name": "country", "typmod": -1, "collation": 100}], "wanted": [], "columns": [{"oid": 23, "kind": "SourceColumn", "name": "id", "attnum": 1, "typmod": -1, "collation": 0}, {"oid": 25, "kind": "SourceColumn", "name": "country", "attnum": 2, "typmod": -1, "collation": 100}], "pushdown": [], "table_oid": 16385, "table_name": "customers", "schema_name": "public", "full_identity": false}, {"id": "filter_1", "kind": "Filter", "input": "source_1", "schema": [{"oid": 23, "kind": "Field", "name": "customer_id", "typmod": -1, "collation": 0}, {"oid": 1700, "kind": "Field", "name": "amount", "typmod": 589830, "collation": 0}], "predicates": [{"op": "is_not_null", "oid": 16, "args": [{"oid": 23, "kind": "Column", "index": 0, "typmod": -1, "collation": 0}], "kind": "Native", "typmod": -1, "collation": 0}]}, {"id": "filter_2", "kind": "Filter", "input": "source_2", "schema": [{"oid": 23, "kind": "Field", "name": "id", "typmod": -1, "collation": 0}, {"oid": 25, "kind": "Field", "name": "country", "typmod": -1, "collation": 100}], "predicates": [{"op": "is_not_null", "oid": 16, "args": [{"oid": 23, "kind": "Column", "index": 0, "typmod": -1, "collation": 0}], "kind": "Native", "typmod": -1, "collation": 0}]}, {"id": "join_1", "op": "inner", "kind": "Join", "left": "filter_1", "right": "filter_2", "schema": [{"oid": 23, "kind": "Field", "name": "customer_id", "typmod": -1, "collation": 0}, {"oid": 1700, "kind": "Field", "name": "amount", "typmod": 589830, "collation": 0}, {"oid": 23, "kind": "Field", "name": "id", "typmod": -1, "collation": 0}, {"oid": 25, "kind": "Field", "name": "country", "typmod": -1, "collation": 100}], "residual": [], "left_keys": [0], "null_safe": [], "right_keys": [0]}, {"id": "map_1", "kind": "Map", "input": "join_1", "schema": [{"oid": 25, "kind": "Field", "name": "key_0", "typmod": -1, "collation": 100}, {"oid": 1700, "kind": "Field", "name": "key_1", "typmod": 589830, "collation": 0}], "expressions": [{"oid": 25, "kind": "Column", "index": 3, "typmod": -1, "collation": 100}, {"oid": 1700, "kind": "Column", "index": 1, "typmod": 589830, "collation": 0}]}, {"id": "reduce_1", "keys": [0], "kind": "Reduce", "input": "map_1", "always": [], "schema": [{"oid": 25, "kind": "Field", "name": "c.country", "typmod": -1, "collation": 100}, {"oid": 20, "kind": "Field", "name": "count(*)", "typmod": -1, "collation": 0}, {"oid": 1700, "kind": "Field", "name": "sum(o.amount)", "typmod": -1, "collation": 0}], "aggregates": [{"row": [], "sql": "", "kind": "Aggregate", "more": [], "direct": 0, "filter": null, "result": {"oid": 20, "kind": "Field", "name": "count(*)", "typmod": -1, "collation": 0}, "trusted": true, "argument": null, "distinct": false, "function": "count_star", "shows_order": false}, {"row": [], "sql": "", "kind": "Aggregate", "more": [], "direct": 0, "filter": null, "result": {"oid": 1700, "kind": "Field", "name": "sum(o.amount)", "typmod": -1, "collation": 0}, "trusted": true, "argument": 1, "distinct": false, "function": "sum", "shows_order": false}]}, {"id": "sink_1", "key": [], "kind": "Sink", "input": "reduce_1", "schema": [{"oid": 25, "kind": "Field", "name": "country", "typmod": -1, "collation": 100}, {"oid": 20, "kind": "Field", "name": "orders", "typmod": -1, "collation": 0}, {"oid": 1700, "kind": "Field", "name": "amount", "typmod": -1, "collation": 0}]}], "version": 2}', '{"key": "could have key (country), proved; that there is no NULL in country would be checked", "logical": "Project [c.country, count(*) AS orders, sum(o.amount) AS amount]\n  Aggregate [count(*), sum(o.amount)] by [c.country]\n    InnerJoin c.id = o.customer_id\n      Scan public.orders AS o [id, customer_id, amount]\n      Scan public.customers AS c [id, country]", "sources": "Table public.customers by key\nTable public.orders by key", "physical": "sink_1 Sink (country text, orders bigint, amount numeric) state: none; cost: O(changed result rows)\n  reduce_1 Reduce [count_star, sum] by [0] (c.country text, count(*) bigint, sum(o.amount) numeric) state: one entry per group; cost: O(changes + touched groups)\n    map_1 Map (key_0 text, key_1 numeric) state: none; cost: O(changes)\n      join_1 Join on 0 = 0 (customer_id integer, amount numeric, id integer, country text) state: all rows of both sides; cost: O(changes × matches)\n        filter_1 Filter (customer_id integer, amount numeric) state: none; cost: O(changes)\n          source_1 Source public.orders by key id (customer_id integer, amount numeric) state: all rows of the table, columns above; cost: O(changes), one read per changed row\n        filter_2 Filter (id integer, country text) state: none; cost: O(changes)\n          source_2 Source public.customers by key id (id integer, country text) state: all rows of the table, columns above; cost: O(changes), one read per changed row", "optimised": "Aggregate [count(*), sum(o.amount)] by [c.country]\n  InnerJoin c.id = o.customer_id\n    Scan public.orders AS o [customer_id, amount] filter o.customer_id IS NOT NULL\n    Scan public.customers AS c [id, country] filter c.id IS NOT NULL"}', '{"history": "2 hours"}', '{"lc_time": "C.UTF-8", "TimeZone": "UTC", "DateStyle": "ISO, MDY", "xmlbinary": "base64", "xmloption": "content", "lc_numeric": "C.UTF-8", "lc_monetary": "C.UTF-8", "bytea_output": "hex", "IntervalStyle": "postgres", "extra_float_digits": "1", "quote_all_identifiers": "off", "timezone_abbreviations": "Default", "default_text_search_config": "pg_catalog.english"}', 'postgres', 16629, '0/1910678', 'running', NULL, NULL, true, '2026-11-24 08:40:24.913033+00', '{"seen": "745:745:", "lacks": [], "owner": 10, "views": {}, "rights": [["owner", 10, 0, [], 0], ["reader", 10, 0, [], 0], ["execute", 10, 65, [], 0], ["execute", 10, 2114, [], 0], ["execute", 10, 2803, [], 0], ["open", 10, 16385, [], 0], ["open", 10, 16392, [], 0], ["select", 10, 16385, [1, 2], 0], ["select", 10, 16392, [2, 3], 0], ["usage", 10, 2200, [], 0]], "tables": {"16385": {"key": [1], "kind": "r", "name": "customers", "parent": false, "schema": "public", "columns": {"1": {"name": "id", "type": 23, "typmod": -1, "written": "731", "not_null": true, "collation": 0, "generated": "", "expression": null}, "2": {"name": "country", "type": 25, "typmod": -1, "written": "731", "not_null": true, "collation": 100, "generated": "", "expression": null}}, "storage": 16385, "identity": "d", "partition": false, "published": {"oid": 16627, "whole": true}, "attributes": [[1, "id", true, "731"], [2, "country", true, "731"]], "persistence": "p"}, "16392": {"key": [1], "kind": "r", "name": "orders", "parent": false, "schema": "public", "columns": {"1": {"name": "id", "type": 23, "typmod": -1, "written": "732", "not_null": true, "collation": 0, "generated": "", "expression": null}, "2": {"name": "customer_id", "type": 23, "typmod": -1, "written": "732", "not_null": true, "collation": 0, "generated": "", "expression": null}, "3": {"name": "amount", "type": 1700, "typmod": 589830, "written": "732", "not_null": true, "collation": 0, "generated": "", "expression": null}}, "storage": 16392, "identity": "d", "partition": false, "published": {"oid": 16628, "whole": true}, "attributes": [[1, "id", true, "732"], [2, "customer_id", true, "732"], [3, "amount", true, "732"]], "persistence": "p"}}, "results": {}, "relations": {"16385": {"name": "public.customers", "members": [16385], "inherits": true}, "16392": {"name": "public.orders", "members": [16392], "inherits": true}}, "definitions": {"deep": false, "words": [], "called": null, "objects": {}}, "publication": {"oid": 16616, "whole": true, "written": "738"}}', 'SELECT c.country,
    count(*) AS orders,
    sum(o.amount) AS amount
   FROM (public.orders o
     JOIN public.customers c ON ((c.id = o.customer_id)))
  GROUP BY c.country;', '[{"oid": 16387, "kind": "type", "name": "customers", "schema": "public"}, {"oid": 16394, "kind": "type", "name": "orders", "schema": "public"}, {"oid": 16385, "name": "customers", "count": 1, "schema": "public", "columns": [[1, "id"], [2, "country"]]}, {"oid": 16392, "name": "orders", "count": 1, "schema": "public", "columns": [[1, "id"], [2, "customer_id"], [3, "amount"]]}]', 0, '{"indexes": [["revenue_country_idx", "USING btree (country)"]], "readers": null}', NULL, NULL, NULL, NULL, NULL);
INSERT INTO headrace.views VALUES (2, 'public', 'large', 'SELECT country FROM revenue WHERE amount > 400', '[{"oid": 25, "kind": "Field", "name": "country", "typmod": -1, "collation": 100}]', '{"kind": "PhysicalPlan", "nodes": [{"id": "source_1", "key": [{"oid": 23, "kind": "SourceColumn", "name": "id", "attnum": 1, "typmod": -1, "collation": 0}], "kind": "Source", "schema": [{"oid": 23, "kind": "Field", "name": "customer_id", "typmod": -1, "collation": 0}, {"oid": 1700, "kind": "Field", "name": "amount", "typmod": 589830, "collation": 0}], "wanted": [], "columns": [{"oid": 23, "kind": "SourceColumn", "name": "customer_id", "attnum": 2, "typmod": -1, "collation": 0}, {"oid": 1700, "kind": "SourceColumn", "name": "amount", "attnum": 3, "typmod": 589830, "collation": 0}], "pushdown": [], "table_oid": 16392, "table_name": "orders", "schema_name": "public", "full_identity": false}, {"id": "source_2", "key": [{"oid": 23, "kind": "SourceColumn", "name": "id", "attnum": 1, "typmod": -1, "collation": 0}], "kind": "Source", "schema": [{"oid": 23, "kind": "Field", "name": "id", "typmod": -1, "collation": 0}, {"oid": 25, "kind": "Field", "name": "country", "typmod": -1, "collation": 100}], "wanted": [], "columns": [{"oid": 23, "kind": "SourceColumn", "name": "id", "attnum": 1, "typmod": -1, "collation": 0}, {"oid": 25, "kind": "SourceColumn", "name": "country", "attnum": 2, "typmod": -1, "collation": 100}], "pushdown": [], "table_oid": 16385, "table_name": "customers", "schema_name": "public", "full_identity": false}, {"id": "filter_1", "kind": "Filter", "input": "source_1", "schema": [{"oid": 23, "kind": "Field", "name": "customer_id", "typmod": -1, "collation": 0}, {"oid": 1700, "kind": "Field", "name": "amount", "typmod": 589830, "collation": 0}], "predicates": [{"op": "is_not_null", "oid": 16, "args": [{"oid": 23, "kind": "Column", "index": 0, "typmod": -1, "collation": 0}], "kind": "Native", "typmod": -1, "collation": 0}]}, {"id": "filter_2", "kind": "Filter", "input": "source_2", "schema": [{"oid": 23, "kind": "Field", "name": "id", "typmod": -1, "collation": 0}, {"oid": 25, "kind": "Field", "name": "country", "typmod": -1, "collation": 100}], "predicates": [{"op": "is_not_null", "oid": 16, "args": [{"oid": 23, "kind": "Column", "index": 0, "typmod": -1, "collation": 0}], "kind": "Native", "typmod": -1, "collation": 0}]}, {"id": "join_1", "op": "inner", "kind": "Join", "left": "filter_1", "right": "filter_2", "schema": [{"oid": 23, "kind": "Field", "name": "customer_id", "typmod": -1, "collation": 0}, {"oid": 1700, "kind": "Field", "name": "amount", "typmod": 589830, "collation": 0}, {"oid": 23, "kind": "Field", "name": "id", "typmod": -1, "collation": 0}, {"oid": 25, "kind": "Field", "name": "country", "typmod": -1, "collation": 100}], "residual": [], "left_keys": [0], "null_safe": [], "right_keys": [0]}, {"id": "map_1", "kind": "Map", "input": "join_1", "schema": [{"oid": 25, "kind": "Field", "name": "key_0", "typmod": -1, "collation": 100}, {"oid": 1700, "kind": "Field", "name": "key_1", "typmod": 589830, "collation": 0}], "expressions": [{"oid": 25, "kind": "Column", "index": 3, "typmod": -1, "collation": 100}, {"oid": 1700, "kind": "Column", "index": 1, "typmod": 589830, "collation": 0}]}, {"id": "reduce_1", "keys": [0], "kind": "Reduce", "input": "map_1", "always": [], "schema": [{"oid": 25, "kind": "Field", "name": "c.country", "typmod": -1, "collation": 100}, {"oid": 1700, "kind": "Field", "name": "sum(o.amount)", "typmod": -1, "collation": 0}], "aggregates": [{"row": [], "sql": "", "kind": "Aggregate", "more": [], "direct": 0, "filter": null, "result": {"oid": 1700, "kind": "Field", "name": "sum(o.amount)", "typmod": -1, "collation": 0}, "trusted": true, "argument": 1, "distinct": false, "function": "sum", "shows_order": false}]}, {"id": "fused_1", "kind": "Fused", "input": "reduce_1", "steps": [{"id": "fused_1.1", "kind": "Filter", "input": "reduce_1", "schema": [{"oid": 25, "kind": "Field", "name": "c.country", "typmod": -1, "collation": 100}, {"oid": 1700, "kind": "Field", "name": "sum(o.amount)", "typmod": -1, "collation": 0}], "predicates": [{"op": ">", "oid": 16, "args": [{"oid": 1700, "kind": "Column", "index": 1, "typmod": -1, "collation": 0}, {"oid": 1700, "kind": "Literal", "text": "400", "typmod": -1, "collation": 0}], "kind": "Native", "typmod": -1, "collation": 0}]}, {"id": "fused_1.2", "kind": "Map", "input": "fused_1.1", "schema": [{"oid": 25, "kind": "Field", "name": "country", "typmod": -1, "collation": 100}], "expressions": [{"oid": 25, "kind": "Column", "index": 0, "typmod": -1, "collation": 100}]}], "schema": [{"oid": 25, "kind": "Field", "name": "country", "typmod": -1, "collation": 100}]}, {"id": "sink_1", "key": [], "kind": "Sink", "input": "fused_1", "schema": [{"oid": 25, "kind": "Field", "name": "country", "typmod": -1, "collation": 100}]}], "version": 2}', '{"key": "could have key (country), proved; that there is no NULL in country would be checked", "logical": "Project [revenue.country]\n  Filter revenue.amount > 400\n    Project [c.country, count(*) AS orders, sum(o.amount) AS amount]\n      Aggregate [count(*), sum(o.amount)] by [c.country]\n        InnerJoin c.id = o.customer_id\n          Scan public.orders AS o [id, customer_id, amount]\n          Scan public.customers AS c [id, country]", "sources": "Table public.customers by key\nTable public.orders by key\nView of Headrace \"public\".\"revenue\"", "physical": "sink_1 Sink (country text) state: none; cost: O(changed result rows)\n  fused_1 Fused Filter + Map (country text) state: none; cost: O(changes)\n    reduce_1 Reduce [sum] by [0] (c.country text, sum(o.amount) numeric) state: one entry per group; cost: O(changes + touched groups)\n      map_1 Map (key_0 text, key_1 numeric) state: none; cost: O(changes)\n        join_1 Join on 0 = 0 (customer_id integer, amount numeric, id integer, country text) state: all rows of both sides; cost: O(changes × matches)\n          filter_1 Filter (customer_id integer, amount numeric) state: none; cost: O(changes)\n            source_1 Source public.orders by key id (customer_id integer, amount numeric) state: all rows of the table, columns above; cost: O(changes), one read per changed row\n          filter_2 Filter (id integer, country text) state: none; cost: O(changes)\n            source_2 Source public.customers by key id (id integer, country text) state: all rows of the table, columns above; cost: O(changes), one read per changed row", "optimised": "Project [c.country]\n  Filter revenue.amount > 400\n    Aggregate [sum(o.amount)] by [c.country]\n      InnerJoin c.id = o.customer_id\n        Scan public.orders AS o [customer_id, amount] filter o.customer_id IS NOT NULL\n        Scan public.customers AS c [id, country] filter c.id IS NOT NULL"}', '{}', '{"lc_time": "C.UTF-8", "TimeZone": "UTC", "DateStyle": "ISO, MDY", "xmlbinary": "base64", "xmloption": "content", "lc_numeric": "C.UTF-8", "lc_monetary": "C.UTF-8", "bytea_output": "hex", "IntervalStyle": "postgres", "extra_float_digits": "1", "quote_all_identifiers": "off", "timezone_abbreviations": "Default", "default_text_search_config": "pg_catalog.english"}', 'postgres', 16655, '0/1920628', 'running', NULL, NULL, true, '2026-11-24 08:40:25.621898+00', '{"seen": "755:755:", "lacks": [], "owner": 10, "views": {}, "rights": [["owner", 10, 0, [], 0], ["reader", 10, 0, [], 0], ["reader", 10, 0, [], 16629], ["execute", 10, 65, [], 16629], ["execute", 10, 1720, [], 0], ["execute", 10, 1740, [], 0], ["execute", 10, 2114, [], 16629], ["execute", 10, 2803, [], 16629], ["open", 10, 16385, [], 16629], ["open", 10, 16392, [], 16629], ["select", 10, 16385, [1, 2], 16629], ["select", 10, 16392, [2, 3], 16629], ["select", 10, 16629, [1, 3], 0], ["usage", 10, 2200, [], 0], ["usage", 10, 2200, [], 16629]], "tables": {"16385": {"key": [1], "kind": "r", "name": "customers", "parent": false, "schema": "public", "columns": {"1": {"name": "id", "type": 23, "typmod": -1, "written": "731", "not_null": true, "collation": 0, "generated": "", "expression": null}, "2": {"name": "country", "type": 25, "typmod": -1, "written": "731", "not_null": true, "collation": 100, "generated": "", "expression": null}}, "storage": 16385, "identity": "d", "partition": false, "published": {"oid": 16627, "whole": true}, "attributes": [[1, "id", true, "731"], [2, "country", true, "731"]], "persistence": "p"}, "16392": {"key": [1], "kind": "r", "name": "orders", "parent": false, "schema": "public", "columns": {"1": {"name": "id", "type": 23, "typmod": -1, "written": "732", "not_null": true, "collation": 0, "generated": "", "expression": null}, "2": {"name": "customer_id", "type": 23, "typmod": -1, "written": "732", "not_null": true, "collation": 0, "generated": "", "expression": null}, "3": {"name": "amount", "type": 1700, "typmod": 589830, "written": "732", "not_null": true, "collation": 0, "generated": "", "expression": null}}, "storage": 16392, "identity": "d", "partition": false, "published": {"oid": 16628, "whole": true}, "attributes": [[1, "id", true, "732"], [2, "customer_id", true, "732"], [3, "amount", true, "732"]], "persistence": "p"}}, "results": {"16629": {"name": "public.revenue", "revision": 0}}, "relations": {"16385": {"name": "public.customers", "members": [16385], "inherits": true}, "16392": {"name": "public.orders", "members": [16392], "inherits": true}}, "definitions": {"deep": false, "words": [], "called": null, "objects": {}}, "publication": {"oid": 16616, "whole": true, "written": "738"}}', 'SELECT country
   FROM public.revenue
  WHERE (amount > (400)::numeric);', '[{"oid": 16631, "kind": "type", "name": "revenue", "schema": "public"}, {"oid": 16629, "name": "revenue", "count": 1, "schema": "public", "columns": [[1, "country"], [2, "orders"], [3, "amount"]]}]', 0, '{"indexes": null, "readers": null}', NULL, NULL, NULL, NULL, NULL);
SELECT pg_catalog.setval('headrace.commands_id_seq', 1, false);
SELECT pg_catalog.setval('headrace.feeds_id_seq', 1, true);
SELECT pg_catalog.setval('headrace.histories_id_seq', 1, true);
SELECT pg_catalog.setval('headrace.views_id_seq', 2, true);
ALTER TABLE ONLY headrace.commands
    ADD CONSTRAINT commands_pkey PRIMARY KEY (id);
ALTER TABLE ONLY headrace.feeds
    ADD CONSTRAINT feeds_owner_name_key UNIQUE (owner, name);
ALTER TABLE ONLY headrace.feeds
    ADD CONSTRAINT feeds_pkey PRIMARY KEY (id);
ALTER TABLE ONLY headrace.histories
    ADD CONSTRAINT histories_pkey PRIMARY KEY (id);
ALTER TABLE ONLY headrace.histories
    ADD CONSTRAINT histories_result_oid_key UNIQUE (result_oid);
ALTER TABLE ONLY headrace.histories
    ADD CONSTRAINT histories_view_id_key UNIQUE (view_id);
ALTER TABLE ONLY headrace.history
    ADD CONSTRAINT history_pkey PRIMARY KEY (history_id, txid, part);
ALTER TABLE ONLY headrace.made_schemas
    ADD CONSTRAINT made_schemas_pkey PRIMARY KEY (schema_oid);
ALTER TABLE ONLY headrace.meta
    ADD CONSTRAINT meta_pkey PRIMARY KEY (key);
ALTER TABLE ONLY headrace.nodes
    ADD CONSTRAINT nodes_pkey PRIMARY KEY (name);
ALTER TABLE ONLY headrace.points
    ADD CONSTRAINT points_pkey PRIMARY KEY (name);
ALTER TABLE ONLY headrace.progress
    ADD CONSTRAINT progress_pkey PRIMARY KEY (view_id);
ALTER TABLE ONLY headrace.view_tables
    ADD CONSTRAINT view_tables_pkey PRIMARY KEY (view_id, table_oid);
ALTER TABLE ONLY headrace.view_uses
    ADD CONSTRAINT view_uses_pkey PRIMARY KEY (view_id, result_oid);
ALTER TABLE ONLY headrace.views
    ADD CONSTRAINT views_pkey PRIMARY KEY (id);
ALTER TABLE ONLY headrace.views
    ADD CONSTRAINT views_schema_name_view_name_key UNIQUE (schema_name, view_name);
CREATE INDEX commands_unfinished ON headrace.commands USING btree (id) WHERE (status = ANY (ARRAY['pending'::text, 'running'::text]));
CREATE INDEX points_view_id ON headrace.points USING btree (view_id);
CREATE INDEX view_tables_table_oid ON headrace.view_tables USING btree (table_oid);
CREATE INDEX view_uses_result_oid ON headrace.view_uses USING btree (result_oid);
CREATE TRIGGER stamp BEFORE INSERT ON headrace.commands FOR EACH ROW EXECUTE FUNCTION headrace.stamp_command();
ALTER TABLE headrace.commands ENABLE ALWAYS TRIGGER stamp;
ALTER TABLE ONLY headrace.histories
    ADD CONSTRAINT histories_view_id_fkey FOREIGN KEY (view_id) REFERENCES headrace.views(id) ON UPDATE CASCADE ON DELETE CASCADE;
ALTER TABLE ONLY headrace.history
    ADD CONSTRAINT history_history_id_fkey FOREIGN KEY (history_id) REFERENCES headrace.histories(id) ON DELETE CASCADE;
ALTER TABLE ONLY headrace.points
    ADD CONSTRAINT points_view_id_fkey FOREIGN KEY (view_id) REFERENCES headrace.views(id) ON UPDATE CASCADE ON DELETE CASCADE;
ALTER TABLE ONLY headrace.progress
    ADD CONSTRAINT progress_view_id_fkey FOREIGN KEY (view_id) REFERENCES headrace.views(id) ON DELETE CASCADE;
ALTER TABLE ONLY headrace.view_tables
    ADD CONSTRAINT view_tables_view_id_fkey FOREIGN KEY (view_id) REFERENCES headrace.views(id) ON DELETE CASCADE;
ALTER TABLE ONLY headrace.view_uses
    ADD CONSTRAINT view_uses_view_id_fkey FOREIGN KEY (view_id) REFERENCES headrace.views(id) ON DELETE CASCADE;
ALTER TABLE headrace.commands ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.feeds ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.histories ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.history ENABLE ROW LEVEL SECURITY;
CREATE POLICY made ON headrace.feeds FOR INSERT WITH CHECK (((owner IN ( SELECT r.oid
   FROM pg_roles r
  WHERE pg_has_role(r.oid, 'USAGE'::text))) AND (history_id IN ( SELECT h.id
   FROM headrace.histories h))));
ALTER TABLE headrace.made_schemas ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.meta ENABLE ROW LEVEL SECURITY;
CREATE POLICY moved ON headrace.feeds FOR UPDATE USING ((owner IN ( SELECT r.oid
   FROM pg_roles r
  WHERE pg_has_role(r.oid, 'USAGE'::text))));
ALTER TABLE headrace.nodes ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON headrace.commands FOR SELECT USING ((caller = ( SELECT ((quote_ident((CURRENT_USER)::text))::regrole)::oid AS quote_ident)));
CREATE POLICY own ON headrace.feeds FOR SELECT USING ((owner IN ( SELECT r.oid
   FROM pg_roles r
  WHERE pg_has_role(r.oid, 'USAGE'::text))));
CREATE POLICY own ON headrace.points FOR SELECT USING ((view_id IN ( SELECT v.id
   FROM headrace.views v)));
CREATE POLICY own ON headrace.progress FOR SELECT USING ((view_id IN ( SELECT v.id
   FROM headrace.views v)));
CREATE POLICY own ON headrace.view_tables FOR SELECT USING ((view_id IN ( SELECT v.id
   FROM headrace.views v)));
CREATE POLICY own ON headrace.view_uses FOR SELECT USING ((view_id IN ( SELECT v.id
   FROM headrace.views v)));
CREATE POLICY own ON headrace.views FOR SELECT USING (((owner)::oid IN ( SELECT r.oid
   FROM pg_roles r
  WHERE pg_has_role(r.oid, 'USAGE'::text))));
ALTER TABLE headrace.points ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.progress ENABLE ROW LEVEL SECURITY;
CREATE POLICY public ON headrace.meta FOR SELECT USING (true);
CREATE POLICY readers ON headrace.histories FOR SELECT USING ((has_table_privilege(result_oid, 'SELECT'::text) AND (NOT row_security_active(result_oid))));
CREATE POLICY readers ON headrace.history FOR SELECT USING ((history_id IN ( SELECT h.id
   FROM headrace.histories h)));
CREATE POLICY readers ON headrace.progress FOR SELECT USING ((view_id IN ( SELECT h.view_id
   FROM headrace.histories h)));
CREATE POLICY send ON headrace.commands FOR INSERT WITH CHECK ((caller = ((quote_ident((CURRENT_USER)::text))::regrole)::oid));
ALTER TABLE headrace.view_tables ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.view_uses ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.views ENABLE ROW LEVEL SECURITY;
GRANT USAGE ON SCHEMA headrace TO PUBLIC;
GRANT SELECT ON TABLE headrace.feeds TO PUBLIC;
GRANT INSERT(name),UPDATE(name) ON TABLE headrace.feeds TO PUBLIC;
GRANT INSERT(history_id) ON TABLE headrace.feeds TO PUBLIC;
GRANT INSERT(txid),UPDATE(txid) ON TABLE headrace.feeds TO PUBLIC;
GRANT SELECT ON TABLE headrace.histories TO PUBLIC;
GRANT SELECT ON TABLE headrace.commands TO PUBLIC;
GRANT INSERT(procedure) ON TABLE headrace.commands TO PUBLIC;
GRANT INSERT(arguments) ON TABLE headrace.commands TO PUBLIC;
GRANT INSERT(settings) ON TABLE headrace.commands TO PUBLIC;
GRANT SELECT ON TABLE headrace.history TO PUBLIC;
GRANT SELECT ON TABLE headrace.meta TO PUBLIC;
GRANT SELECT ON TABLE headrace.points TO PUBLIC;
GRANT SELECT ON TABLE headrace.progress TO PUBLIC;
GRANT SELECT ON TABLE headrace.view_tables TO PUBLIC;
GRANT SELECT ON TABLE headrace.view_uses TO PUBLIC;
GRANT SELECT(id) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(schema_name) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(view_name) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(query) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(columns) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(explain) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(options) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(settings) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(owner) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(result_oid) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(start_lsn) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(status) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(message) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(sqlstate) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(block) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(created_at) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(canonical) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(revision) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(detail) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(hint) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(culprit) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(tried) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(note) ON TABLE headrace.views TO PUBLIC;
