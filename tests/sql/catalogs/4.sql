-- Schema headrace as commit 1c866d5 left it (catalog 4): catalog 3 upgraded, with the state of a cursor.
-- Of pg_dump --schema=headrace --no-owner --inserts, without its settings and empty lines and catalog_oid, and without procedures
-- and some large functions.
SET check_function_bodies = false;
SELECT pg_catalog.set_config('search_path', '', false);
CREATE SCHEMA headrace;
COMMENT ON SCHEMA headrace IS 'Headrace: incrementally maintained views. Remove with `headrace uninstall`.';
CREATE FUNCTION headrace.advise(query text DEFAULT NULL::text, OUT topic text, OUT subject text, OUT finding text, OUT value double precision, OUT unit text, OUT advice text) RETURNS SETOF record
    LANGUAGE plpgsql STABLE
    AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '0A000',
        MESSAGE = 'advise is answered only on the port of headrace, as a statement of its own',
        DETAIL = 'Here it is part of a larger query, inside of a transaction, or on a direct connection: a function cannot ask the engine.',
        HINT = 'On the port of headrace, with autocommit on, write exactly SELECT * FROM headrace.advise(query);'
               ' on any connection, CALL headrace.show_advice(query) answers the rows as one JSON array.';
END
$$;
CREATE FUNCTION headrace.ask_engine(procedure text, called text, subject bigint DEFAULT 0, slot boolean DEFAULT false, writes boolean DEFAULT false) RETURNS jsonb
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    level   text := current_setting('transaction_isolation');
    role    bigint := quote_ident(CURRENT_USER)::regrole::oid;
    key     int;
    command bigint;
    seen    text;
    done    boolean := false;
    answer  jsonb;
    waited  int := 0;
BEGIN
    IF level IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION USING ERRCODE = '0A000',
            MESSAGE = format('%s cannot be answered in a %s transaction', procedure, upper(level)),
            DETAIL = 'Its snapshot shows nothing that is written after it was taken, and so no answer of the engine.',
            HINT = format('Use a READ COMMITTED transaction, or CALL headrace.%s outside of a transaction.', called);
    ELSIF writes AND current_setting('transaction_read_only')::boolean THEN
        RAISE EXCEPTION USING ERRCODE = '25006',
            MESSAGE = format('cannot execute %s in a read-only transaction', procedure);
    ELSIF slot AND NOT pg_is_in_recovery() AND pg_current_xact_id_if_assigned() IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '0A000',
            MESSAGE = format('%s cannot be answered in a transaction that has written', procedure),
            DETAIL = 'It takes a snapshot with a replication slot, which waits until transactions that have written are over.',
            HINT = format('Commit first, or CALL headrace.%s outside of a transaction.', called);
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
    BEGIN
        -- Another session could have one of the locks only by chance, or by trying all numbers.
        LOOP
            key := floor(random() * 2147483640)::int;
            command := (1::bigint << 62) + (pg_backend_pid()::bigint << 31) + key;
            EXIT WHEN NOT EXISTS (SELECT FROM headrace.commands c WHERE c.id = command)
                AND pg_try_advisory_xact_lock_shared(key, (CASE WHEN role > 2147483647 THEN role - 4294967296 ELSE role END)::int)
                AND pg_try_advisory_xact_lock_shared(key + 1, hashtext(procedure))
                AND pg_try_advisory_xact_lock_shared(key + 2, subject::int)
                AND pg_try_advisory_xact_lock_shared(1212437063, key);
        END LOOP;
        waited := 0;
        WHILE NOT EXISTS (SELECT FROM headrace.commands c WHERE c.id = command) LOOP
            waited := waited + 1;
            IF waited % 50 = 0 THEN
                PERFORM pg_stat_clear_snapshot();
                IF NOT headrace.engine_running() THEN
                    RAISE EXCEPTION USING ERRCODE = '57P03', MESSAGE = 'headrace is not running',
                        DETAIL = 'The engine went away before it answered.',
                        HINT = 'Start it with `headrace start --source …` and call again.';
                END IF;
            END IF;
            PERFORM pg_sleep(0.01);
        END LOOP;
        WHILE NOT done LOOP
            SELECT a.seen, a.done INTO seen, done FROM headrace.await_command(command, seen) a;
        END LOOP;
        answer := headrace.command_result(command);
        RAISE EXCEPTION USING ERRCODE = 'HR001';
    EXCEPTION WHEN SQLSTATE 'HR001' THEN
        NULL;
    END;
    RETURN answer;
END
$$;
CREATE FUNCTION headrace.at_work() RETURNS text
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT string_agg(format('%I.%I', v.schema_name, v.view_name), ', ' ORDER BY h.since, v.id)
      FROM headrace.held h JOIN headrace.views v ON v.id = h.view_id WHERE h.kind = 'work'
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
                    DETAIL = 'The engine stopped during the command. It ends or undoes the command when it is back.',
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
CREATE FUNCTION headrace.batch_s() RETURNS double precision
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT p.batch_s FROM headrace.worker_position() p
$$;
CREATE FUNCTION headrace.batches(OUT txid bigint, OUT attempt bigint, OUT state text, OUT at text, OUT transactions bigint, OUT rows bigint, OUT views bigint, OUT process_us bigint, OUT wait_us bigint, OUT write_us bigint, OUT fresh_us bigint) RETURNS SETOF record
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT * FROM jsonb_to_recordset(headrace.ask_engine('batches', 'show_batches'))
      AS a(
          txid bigint, attempt bigint, state text, at text, transactions bigint, rows bigint, views bigint,
          process_us bigint, wait_us bigint, write_us bigint, fresh_us bigint)
$$;
CREATE FUNCTION headrace.captured_settings() RETURNS jsonb
    LANGUAGE sql STABLE
    AS $$ SELECT pg_catalog.jsonb_object_agg(s.name, pg_catalog.current_setting(s.name)) FROM pg_catalog.unnest('{TimeZone, DateStyle, IntervalStyle, extra_float_digits, bytea_output, lc_monetary, lc_numeric, lc_time, xmloption, xmlbinary, default_text_search_config, timezone_abbreviations, quote_all_identifiers, standard_conforming_strings, backslash_quote, array_nulls, transform_null_equals, search_path}'::pg_catalog.text[]) AS s (name) $$;
CREATE FUNCTION headrace.client_stats(OUT database text, OUT clients bigint, OUT clients_total bigint, OUT queries bigint, OUT received_bytes bigint, OUT sent_bytes bigint, OUT calls bigint, OUT call_errors bigint, OUT call_us bigint) RETURNS SETOF record
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT * FROM jsonb_to_recordset(headrace.ask_engine('client_stats', 'show_client_stats'))
      AS a(
          database text, clients bigint, clients_total bigint, queries bigint, received_bytes bigint,
          sent_bytes bigint, calls bigint, call_errors bigint, call_us bigint)
$$;
CREATE FUNCTION headrace.clients(OUT id bigint, OUT role text, OUT database text, OUT application_name text, OUT state text, OUT transaction text, OUT call text, OUT call_ms bigint, OUT connected_at text, OUT idle_ms bigint, OUT queries bigint, OUT received_bytes bigint, OUT sent_bytes bigint, OUT address text, OUT port bigint, OUT tls text, OUT server_pid bigint, OUT server_tls text) RETURNS SETOF record
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT * FROM jsonb_to_recordset(headrace.ask_engine('clients', 'show_clients'))
      AS a(
          id bigint, role text, database text, application_name text, state text, transaction text, call text,
          call_ms bigint, connected_at text, idle_ms bigint, queries bigint, received_bytes bigint,
          sent_bytes bigint, address text, port bigint, tls text, server_pid bigint, server_tls text)
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
CREATE FUNCTION headrace.explain_placement(name_or_query text, strategy text DEFAULT NULL::text, OUT what text, OUT name text, OUT worker text, OUT why text, OUT bytes_s bigint, OUT cost bigint, OUT ns_per_row bigint) RETURNS SETOF record
    LANGUAGE plpgsql STABLE
    AS $_$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '0A000',
        MESSAGE = 'explain_placement is answered only on the port of headrace, as a statement of its own',
        DETAIL = 'Here it is part of a larger query, inside of a transaction, or on a direct connection: a function cannot ask the engine.',
        HINT = pg_catalog.format(
            'On the port of headrace, with autocommit on, write exactly SELECT * FROM headrace.explain_placement(%1$L);'
            ' on any connection, CALL headrace.show_placement(%1$L) answers the rows as one JSON array.', name_or_query);
END
$_$;
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
CREATE FUNCTION headrace.find_view(name text) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
DECLARE
    parts  pg_catalog.text[];
    paths  pg_catalog.name[] := pg_catalog.current_schemas(false);
    found  pg_catalog.int8;
BEGIN
    IF name IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22004', MESSAGE = 'argument "name" must not be null';
    END IF;
    BEGIN
        parts := pg_catalog.parse_ident(name);
    EXCEPTION WHEN invalid_parameter_value THEN
        RAISE EXCEPTION USING ERRCODE = '42602', MESSAGE = pg_catalog.format('invalid name syntax: "%s"', name),
            HINT = 'Write it as name or schema.name, with double quotes where SQL needs them.';
    END;
    IF pg_catalog.array_length(parts, 1) OPERATOR(pg_catalog.=) 2 THEN
        paths := ARRAY[parts[1]]::pg_catalog.name[];
        parts := parts[2:2];
    END IF;
    SELECT s.id INTO found
      FROM pg_catalog.unnest(paths) WITH ORDINALITY p (schema, n)
      JOIN headrace.view_states() s ON s.name OPERATOR(pg_catalog.=) pg_catalog.format('%I.%I', p.schema, parts[1])
     WHERE pg_catalog.array_length(parts, 1) OPERATOR(pg_catalog.=) 1
     ORDER BY p.n LIMIT 1;
    IF found IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '42P01',
            MESSAGE = pg_catalog.format('view "%s" does not exist', name), HINT = 'See headrace.list_views().';
    END IF;
    RETURN found;
END
$$;
CREATE FUNCTION headrace.has_room_for_feed(role oid) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    RETURN (SELECT count(*) FROM headrace.feeds f WHERE f.owner = role) < 1000;
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
            DETAIL = 'Its changes are shown only to roles that may read all of its rows.';
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
            DETAIL = 'Another role has written it.',
            HINT = 'CALL headrace.set_history(view, NULL) and CALL headrace.resync_view(view), then keep a history again.';
    END IF;
    RETURN times;
END
$$;
CREATE FUNCTION headrace.hmac_sha256(key bytea, message bytea) RETURNS bytea
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    inner_pad bytea := decode(repeat('36', 64), 'hex');
    outer_pad bytea := decode(repeat('5c', 64), 'hex');
BEGIN
    FOR i IN 0 .. length(key) - 1 LOOP
        inner_pad := set_byte(inner_pad, i, get_byte(key, i) # 54);
        outer_pad := set_byte(outer_pad, i, get_byte(key, i) # 92);
    END LOOP;
    RETURN sha256(outer_pad || sha256(inner_pad || message));
END
$$;
CREATE FUNCTION headrace.join_worker(worker text, made_at bigint, proof bytea, address text, certificate text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    was      headrace.nodes;
    signed   text;
    stream   bytea;
    secret   bytea;
    now_at   bigint := extract(epoch FROM clock_timestamp()) * 1000000;
    seen_at  bigint;
BEGIN
    -- Every role may call this: inputs are bounded before they are hashed.
    IF length(address) > 300 OR length(certificate) > 10000 OR length(worker) > 100 THEN
        RAISE EXCEPTION USING ERRCODE = '22001', MESSAGE = 'address or certificate of the worker is too long';
    END IF;
    SELECT n.* INTO was FROM headrace.nodes n
     WHERE n.name = join_worker.worker AND n.token IS NOT NULL FOR NO KEY UPDATE;
    seen_at := extract(epoch FROM was.seen_at) * 1000000;
    IF FOUND AND length(proof) BETWEEN 1 AND 64 THEN
        signed := concat_ws(E'\n', worker, made_at, address, certificate);
        stream := headrace.hmac_sha256(was.token, convert_to(E'1\n' || signed, 'UTF8'))
               || headrace.hmac_sha256(was.token, convert_to(E'2\n' || signed, 'UTF8'));
        secret := proof;
        FOR i IN 0 .. length(proof) - 1 LOOP
            secret := set_byte(secret, i, get_byte(proof, i) # get_byte(stream, i));
        END LOOP;
    END IF;
    IF secret IS NULL OR sha256(secret) <> was.token THEN
        RAISE EXCEPTION USING ERRCODE = '28000', MESSAGE = 'the worker''s token is not valid',
            DETAIL = 'The worker was removed, a newer token was made for it, or this database is not that of its engine.',
            HINT = 'CALL headrace.create_worker_token(name) makes one.';
    END IF;
    -- A server whose clock was set back would refuse every proof until the old time has come again.
    IF made_at NOT BETWEEN now_at - 60000000 AND now_at OR (made_at <= seen_at AND seen_at <= now_at) THEN
        RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'the worker''s proof is too old, or was used before',
            HINT = 'The worker makes a new one by itself when it tries again.';
    END IF;
    -- Two processes with one token would take each other's place again and again.  One that has lost its disk is
    -- where it was; one that has moved is not seen any more (as long as nodes.SILENCE_S).
    IF was.certificate <> join_worker.certificate AND was.address <> join_worker.address
       AND was.seen_at > clock_timestamp() - interval '30 seconds' THEN
        RAISE EXCEPTION USING ERRCODE = '55006', MESSAGE = format('worker "%s" has joined from elsewhere', was.name),
            DETAIL = format('It listens on %s, and reported that less than 30 seconds ago.', was.address),
            HINT = 'Stop that one, and try again; or create another worker: CALL headrace.create_worker_token(name).';
    END IF;
    UPDATE headrace.nodes n
       SET address = join_worker.address, certificate = join_worker.certificate, seen_at = clock_timestamp()
     WHERE n.name = was.name;
    RETURN (SELECT m.value FROM headrace.meta m WHERE m.key = 'certificate');
END
$$;
CREATE FUNCTION headrace.lag_history(view text, OUT at timestamp with time zone, OUT step_s integer, OUT batches bigint, OUT rows_per_s double precision, OUT p50_ms double precision, OUT p99_ms double precision, OUT max_ms double precision, OUT lag_ms bigint, OUT lag_bytes bigint, OUT state_bytes bigint) RETURNS SETOF record
    LANGUAGE plpgsql STABLE
    AS $$
DECLARE
    -- On the search path of who asks.
    found pg_catalog.oid := pg_catalog.to_regclass(lag_history.view)::pg_catalog.oid;
    number pg_catalog.int8;
    fine   pg_catalog.timestamptz := pg_catalog.now() OPERATOR(pg_catalog.-) '15 min'::pg_catalog.interval;
    coarse pg_catalog.timestamptz := pg_catalog.now() OPERATOR(pg_catalog.-) '6 h'::pg_catalog.interval;
BEGIN
    SELECT v.id INTO number FROM headrace.views v WHERE v.result_oid OPERATOR(pg_catalog.=) found;
    IF number IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '42P01',
            MESSAGE = pg_catalog.format('view "%s" does not exist', lag_history.view),
            DETAIL = 'Or it belongs to another role.', HINT = 'See headrace.list_views().';
    END IF;
    RETURN QUERY
    SELECT s.at, s.step_s, s.batches, s.rows_per_s, s.p50_ms, s.p99_ms, s.max_ms, s.lag_ms, s.lag_bytes, s.state_bytes
      FROM headrace.samples s
     WHERE s.view_id OPERATOR(pg_catalog.=) number
       AND CASE WHEN s.step_s OPERATOR(pg_catalog.=) 10 THEN s.at OPERATOR(pg_catalog.>=) fine
                WHEN s.step_s OPERATOR(pg_catalog.=) 60 THEN s.at OPERATOR(pg_catalog.>=) coarse AND s.at OPERATOR(pg_catalog.<) fine
                ELSE s.at OPERATOR(pg_catalog.<) coarse END
     ORDER BY s.at DESC;
END
$$;
CREATE FUNCTION headrace.links(OUT worker text, OUT kind text, OUT up boolean, OUT latency_us bigint, OUT bandwidth bigint, OUT most bigint, OUT out_bytes_per_s bigint, OUT in_bytes_per_s bigint, OUT packed boolean, OUT overridden boolean) RETURNS SETOF record
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT * FROM jsonb_to_recordset(headrace.ask_engine('links', 'show_links'))
      AS a(
          worker text, kind text, up boolean, latency_us bigint, bandwidth bigint, most bigint,
          out_bytes_per_s bigint, in_bytes_per_s bigint, packed boolean, overridden boolean)
$$;
CREATE FUNCTION headrace.list_views(OUT name text, OUT status text, OUT message text, OUT query text, OUT rows bigint, OUT lag_ms bigint, OUT lag_bytes bigint, OUT txid bigint, OUT lsn pg_lsn, OUT owner text, OUT since timestamp with time zone, OUT held_by text, OUT p50_ms double precision, OUT p99_ms double precision, OUT rows_per_s double precision, OUT state_bytes bigint, OUT last_error text, OUT last_error_at timestamp with time zone, OUT cursor text) RETURNS SETOF record
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT s.name, s.status, coalesce(s.message, nullif(concat_ws('; ', headrace.view_message(v.id), v.note), '')), coalesce(v.explain ->> 'tidy', v.query), s.rows, s.lag_ms,
           s.lag_bytes, s.txid, s.lsn, pg_get_userbyid(v.owner), CASE WHEN s.status = v.status THEN v.since END,
           CASE s.status
                WHEN 'stopped' THEN 'no engine is connected'
                WHEN 'starting' THEN 'its worker is starting, or silent'
                WHEN 'pending' THEN 'it waits for its turn to be filled'
                WHEN 'populating' THEN 'it is being filled'
                WHEN 'paused' THEN concat_ws('; ', format('paused by %s, %s ago: resume_view continues it',
                     coalesce(pg_get_userbyid(v.paused_by), 'pause_view'),
                     date_trunc('second', clock_timestamp() - v.since)), g.near)
                WHEN 'error' THEN 'it has stopped: see message'
                WHEN 'sink_error' THEN concat_ws('; ', coalesce(
                     'its table is locked by ' || l.who,
                     CASE WHEN s.cursor <> 'lost' THEN NULL
                          WHEN v.placed_parts <> '{}'
                          THEN format('it waits for worker %s', (SELECT string_agg(DISTINCT format('"%s"', p.value), ' or ')
                                                                   FROM jsonb_each_text(v.placed_parts) p))
                          WHEN jsonb_typeof(v.options -> 'placement') = 'string' AND v.options ->> 'placement'
                               NOT IN ('main', 'auto', 'bottom_up', 'top_down', 'ifcop', 'exact')
                          THEN format('it waits for worker "%s"', v.options ->> 'placement') END,
                     'its table cannot be written now: see message'), g.near)
                ELSE nullif(concat_ws('; ', coalesce(
                     'its table is locked by ' || l.who,
                     w.what || format(', for %s s', round(extract(epoch FROM clock_timestamp() - w.since))),
                     CASE WHEN s.lag_ms > 1000 AND b.batch_s > 1 AND b.at_work IS NOT NULL
                          THEN format('a batch under way for %s s, of %s', round(b.batch_s::numeric), b.at_work)
                          WHEN s.lag_ms > 1000 AND n.lag_bytes > s.lag_bytes AND n.at > v.since
                               AND n.at BETWEEN clock_timestamp() - interval '90 s' AND clock_timestamp() - interval '1 s'
                          THEN format('it catches up: %s behind, about %s s to go', pg_size_pretty(s.lag_bytes),
                               ceil(s.lag_bytes * extract(epoch FROM clock_timestamp() - n.at) / (n.lag_bytes - s.lag_bytes)))
                          WHEN s.lag_ms > 1000 AND b.batch_s > 1
                          THEN format('a batch under way for %s s', round(b.batch_s::numeric))
                          WHEN s.lag_ms > 1000 THEN format('it is %s behind', pg_size_pretty(s.lag_bytes)) END),
                     a.what || format(', for %s', date_trunc('second', clock_timestamp() - a.since))), '') END,
           CASE WHEN n.fresh THEN n.p50_ms END, CASE WHEN n.fresh THEN n.p99_ms END,
           CASE WHEN n.fresh THEN n.rows_per_s ELSE 0 END, n.state_bytes, v.last_error, v.last_error_at, s.cursor
      FROM headrace.view_states() WITH ORDINALITY s
      LEFT JOIN headrace.views v ON v.id = s.id  -- row security decides
      LEFT JOIN LATERAL (
           SELECT m.at, m.lag_bytes, m.p50_ms, m.p99_ms, m.rows_per_s, m.state_bytes,
                  m.at > clock_timestamp() - interval '30 s' AS fresh
             FROM headrace.samples m WHERE m.view_id = v.id AND m.step_s = 10 ORDER BY m.at DESC LIMIT 1) n ON true
      LEFT JOIN LATERAL (
           SELECT string_agg(format('process %s (%s)%s', k.pid, coalesce(a.usename, '?'),
                  coalesce(': ' || left(nullif(a.query, ''), 100), '')), '; ' ORDER BY k.pid) AS who
             FROM pg_locks k LEFT JOIN pg_stat_activity a ON a.pid = k.pid
            WHERE k.locktype = 'relation' AND k.relation = v.result_oid AND k.granted
              AND k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
              AND k.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
              AND coalesce(a.application_name, '') NOT LIKE 'headrace%'
              AND s.lag_ms > 0) l ON true
      LEFT JOIN headrace.held w ON w.view_id = v.id AND w.kind = 'work'
      LEFT JOIN headrace.held a ON a.view_id = v.id AND a.kind = 'source'
      -- A view that stands still needs a resync when more than the budget is kept for it.  With wal_retention =
      -- source, no more is kept than the slot has not confirmed.
      LEFT JOIN LATERAL (
           SELECT format('about %s %% of wal_budget_bytes (%s) is kept for it: beyond that it needs a resync',
                         round(100 * k.bytes / m.value::numeric), pg_size_pretty(m.value::bigint)) AS near
             FROM headrace.meta m
            CROSS JOIN (SELECT least(s.lag_bytes, (
                   SELECT CASE WHEN pg_is_in_recovery() THEN NULL ELSE pg_current_wal_lsn() END - r.confirmed_flush_lsn
                     FROM headrace.meta n JOIN pg_replication_slots r ON r.slot_name = n.value
                    WHERE n.key = 'slot_name' AND EXISTS (
                          SELECT FROM headrace.meta w WHERE w.key = 'wal_retention' AND w.value = 'source'))) AS bytes) k
            WHERE m.key = 'wal_budget_bytes' AND m.value::bigint > 0 AND k.bytes > m.value::bigint / 2) g ON true
     CROSS JOIN (SELECT headrace.batch_s() AS batch_s, headrace.at_work() AS at_work) b
     ORDER BY s.ordinality
$$;
CREATE FUNCTION headrace.memory(OUT part text, OUT view text, OUT bytes bigint, OUT limit_bytes bigint) RETURNS SETOF record
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT * FROM jsonb_to_recordset(headrace.ask_engine('memory', 'show_memory'))
      AS a(
          part text, view text, bytes bigint, limit_bytes bigint)
$$;
CREATE FUNCTION headrace.queues(OUT queue text, OUT reader text, OUT node text, OUT queued_rows bigint, OUT queued_bytes bigint, OUT blocks bigint, OUT contiguous boolean, OUT resident_bytes bigint, OUT base_txid bigint, OUT front_txid bigint, OUT tail_txid bigint, OUT head_txid bigint, OUT behind_bytes bigint, OUT kind text, OUT priority bigint, OUT resident_pct bigint, OUT running boolean) RETURNS SETOF record
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT * FROM jsonb_to_recordset(headrace.ask_engine('queues', 'show_queues'))
      AS a(
          queue text, reader text, node text, queued_rows bigint, queued_bytes bigint, blocks bigint,
          contiguous boolean, resident_bytes bigint, base_txid bigint, front_txid bigint, tail_txid bigint,
          head_txid bigint, behind_bytes bigint, kind text, priority bigint, resident_pct bigint, running boolean)
$$;
CREATE FUNCTION headrace.rebalance(apply boolean DEFAULT false, OUT view text, OUT worker_now text, OUT worker_then text, OUT busy_us bigint, OUT moved boolean, OUT problem text) RETURNS SETOF record
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT * FROM jsonb_to_recordset(headrace.ask_engine(
            'rebalance', 'show_rebalance', coalesce(apply, false)::int, coalesce(apply, false), coalesce(apply, false)))
      AS a(
          view text, worker_now text, worker_then text, busy_us bigint, moved boolean, problem text)
$$;
CREATE FUNCTION headrace.refuse_rows() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    -- Where a view is verified they are there for a moment, and never committed.
    IF pg_catalog.current_setting('headrace.filling', true) OPERATOR(pg_catalog.=) 'on' THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION USING ERRCODE = '0A000',
        MESSAGE = pg_catalog.format('table %I.%I is a stand-in: its rows are in another database',
                                    TG_TABLE_SCHEMA, TG_TABLE_NAME),
        HINT = 'Write to the table there; views of Headrace read it.';
END
$$;
CREATE FUNCTION headrace.settings(OUT name text, OUT value text, OUT initial text, OUT reloads boolean) RETURNS SETOF record
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT * FROM jsonb_to_recordset(headrace.ask_engine('settings', 'show_settings'))
      AS a(
          name text, value text, initial text, reloads boolean)
$$;
CREATE FUNCTION headrace.sources(OUT source text, OUT state text, OUT "position" text, OUT lag_bytes bigint, OUT changes bigint, OUT heard_at text, OUT views bigint, OUT tables bigint, OUT problem text) RETURNS SETOF record
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT * FROM jsonb_to_recordset(headrace.ask_engine('sources', 'show_sources'))
      AS a(
          source text, state text, "position" text, lag_bytes bigint, changes bigint, heard_at text, views bigint,
          tables bigint, problem text)
$$;
CREATE FUNCTION headrace.stamp_command() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    -- Not pg_column_size: of a value that comes from a table that is its compressed size.
    size    bigint := octet_length(NEW.arguments::text) + octet_length(NEW.settings::text);
    waiting bigint;
    bytes   bigint;
BEGIN
    -- A subscription's worker brings commands that were meant for another database.
    IF current_setting('session_replication_role') = 'replica' THEN
        RETURN NULL;
    END IF;
    NEW.caller := quote_ident(CURRENT_USER)::regrole;
    NEW.status := 'pending';
    NEW.created_at := now();
    IF size > 1048576 THEN
        RAISE EXCEPTION USING ERRCODE = '54000',
            MESSAGE = 'the arguments and settings of the call are too large',
            DETAIL = 'All of them together may have 1 MB of text.';
    END IF;
    -- How many of them are carried out at once is a setting; this keeps the table small.
    SELECT count(*), coalesce(sum(octet_length(c.arguments::text) + octet_length(c.settings::text)), 0) INTO waiting, bytes
      FROM headrace.commands c WHERE c.caller = NEW.caller AND c.status IN ('pending', 'running');
    IF waiting >= 1000 THEN
        RAISE EXCEPTION USING ERRCODE = '53400',
            MESSAGE = 'role ' || quote_ident(CURRENT_USER) || ' has 1000 waiting calls and may have no more',
            HINT = 'Wait for some.';
    END IF;
    -- Calls that are written at the same moment do not see each other; the commander counts these (commands.py).
    IF waiting > 0 AND bytes + size > 4194304 THEN
        RAISE EXCEPTION USING ERRCODE = '53400',
            MESSAGE = 'calls of role ' || quote_ident(CURRENT_USER) || ' that wait have 4 MB of text and may have no more',
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
    -- Before it waits for an engine; the trigger of the table checks it again, with the settings.
    IF octet_length(arguments::text) > 1048576 THEN
        RAISE EXCEPTION USING ERRCODE = '54000',
            MESSAGE = 'the arguments of the call are too large',
            DETAIL = 'All of them together may have 1 MB of text.';
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
CREATE FUNCTION headrace.verify_view(name text, OUT surplus bigint, OUT missing bigint, OUT contents text) RETURNS SETOF record
    LANGUAGE sql
    AS $$
    SELECT a.surplus, a.missing, a.contents
      FROM pg_catalog.jsonb_to_recordset(
        headrace.ask_engine('verify_view', 'verify', headrace.find_view(name), true))
      AS a(
          surplus pg_catalog.int8, missing pg_catalog.int8, contents pg_catalog.text)
$$;
CREATE FUNCTION headrace.view_as_of(view anyelement, txid bigint DEFAULT NULL::bigint, lsn pg_lsn DEFAULT NULL::pg_lsn, at timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS SETOF anyelement
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET "TimeZone" TO 'UTC'
    AS $$
#variable_conflict use_column
DECLARE
    named regclass;
BEGIN
    SELECT t.typrelid INTO named FROM pg_type t JOIN pg_class c ON c.oid = t.typrelid
     WHERE t.oid = pg_typeof(view) AND c.relkind = 'r';
    IF named IS NULL OR num_nonnulls(view_as_of.txid, view_as_of.lsn, view_as_of.at) <> 1 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'view_as_of takes the row type of a view, and one of txid, lsn, at',
            HINT = 'Write for example SELECT * FROM headrace.view_as_of(NULL::v, txid => 42).';
    ELSIF view_as_of.txid IS NULL THEN
        PERFORM headrace.await_history(named, view_as_of.lsn, view_as_of.at);
    END IF;
    RETURN QUERY SELECT * FROM headrace.rows_as_of(view, view_as_of.txid, view_as_of.lsn, view_as_of.at);
END
$$;
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
CREATE FUNCTION headrace.view_states(OUT id bigint, OUT name text, OUT status text, OUT message text, OUT rows bigint, OUT lag_ms bigint, OUT lag_bytes bigint, OUT txid bigint, OUT lsn pg_lsn, OUT cursor text) RETURNS SETOF record
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    -- Who asks again and again in one transaction is to see who has gone meanwhile.
    SELECT pg_stat_clear_snapshot();
    SELECT v.id, format('%I.%I', v.schema_name, v.view_name), k.status,
           CASE WHEN k.orphan THEN format('the role that owned it was dropped; CALL headrace.set_owner(%L, role)'
                    ' gives it a new owner.', format('%I.%I', v.schema_name, v.view_name))
                WHEN k.status = v.status THEN NULL
                WHEN k.status = 'stopped' THEN 'no engine is connected to this database'
                WHEN k.status = 'starting' THEN 'the worker is not connected, or silent'
                ELSE format('result table "%s"."%s" was dropped; CALL headrace.resync_view(%L) rebuilds it.',
                            v.schema_name, v.view_name, format('%I.%I', v.schema_name, v.view_name)) END,
           CASE WHEN c.reltuples >= 0 OR pg_stat_get_live_tuples(c.oid) > 0
                THEN greatest(c.reltuples::bigint, pg_stat_get_live_tuples(c.oid)) END,
           CASE WHEN p.lsn IS NULL THEN NULL
                WHEN k.covered >= w.lsn THEN 0
                WHEN h.lsn IS NOT NULL THEN greatest(extract(epoch FROM clock_timestamp() - h.since) * 1000, 0)::bigint
                WHEN k.status IN ('running', 'paused', 'sink_error') AND e.heard THEN greatest(e.lag_ms, CASE WHEN e.lsn IS NOT NULL AND k.status = 'running' THEN e.busy_ms END)
                ELSE k.since_ms END,
           greatest(w.lsn - k.covered, 0)::bigint,
           p.txid, p.lsn,
           CASE WHEN e.heard THEN
                CASE k.status
                     WHEN 'running' THEN CASE WHEN u.what IS NULL THEN 'leading' ELSE 'catching_up' END
                     WHEN 'paused' THEN 'paused'
                     WHEN 'sink_error' THEN CASE u.what WHEN 'lost' THEN 'lost' ELSE 'blocked' END END END
      FROM headrace.views v
      LEFT JOIN headrace.progress p ON p.view_id = v.id
      LEFT JOIN pg_class c ON c.oid = v.result_oid
      LEFT JOIN pg_roles o ON o.oid = v.owner
     CROSS JOIN (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                             ELSE pg_current_wal_lsn() END AS lsn) w
      LEFT JOIN (SELECT r.confirmed_flush_lsn AS confirmed
                   FROM headrace.meta m JOIN pg_replication_slots r ON r.slot_name = m.value
                  WHERE m.key = 'slot_name') s ON true
      LEFT JOIN headrace.worker_position() e ON true
      LEFT JOIN headrace.held h ON h.view_id = v.id AND h.kind = 'behind' AND h.lsn >= p.lsn AND v.status <> 'error'
      LEFT JOIN headrace.held u ON u.view_id = v.id AND u.kind = 'cursor'
     CROSS JOIN LATERAL (
         SELECT v.owner IS NOT NULL AND o.oid IS NULL AS orphan,
                CASE WHEN v.owner IS NOT NULL AND o.oid IS NULL THEN 'error'
                     WHEN v.status IN ('paused', 'error') THEN v.status
                     WHEN v.status = 'running' AND c.oid IS NULL THEN 'error'
                     WHEN e.heard AND (p.epoch > 0 OR v.status <> 'running') THEN v.status
                     WHEN e.heard IS NULL AND NOT headrace.engine_running() THEN 'stopped'
                     WHEN v.status = 'running' THEN 'starting'
                     ELSE v.status END AS status,
                CASE WHEN h.lsn IS NOT NULL THEN h.lsn
                     WHEN e.heard AND v.status IN ('running', 'paused', 'sink_error') THEN greatest(p.lsn, e.lsn)
                     WHEN v.status = 'running' THEN greatest(p.lsn, s.confirmed)
                     ELSE p.lsn END AS covered,
                greatest(extract(epoch FROM clock_timestamp()
                    - coalesce(p.source_commit_at, p.applied_at, v.created_at)) * 1000, 0)::bigint
                    AS since_ms) k
     ORDER BY v.schema_name, v.view_name
$$;
CREATE FUNCTION headrace.view_stats(name text, OUT node text, OUT collection text, OUT shared boolean, OUT worker text, OUT rows_in bigint, OUT rows_out bigint, OUT batches bigint, OUT busy_us bigint, OUT cpu_us bigint, OUT state_rows bigint, OUT state_bytes bigint, OUT state_exact boolean, OUT queued_rows bigint, OUT queued_bytes bigint) RETURNS SETOF record
    LANGUAGE sql
    AS $$
    SELECT a.node, a.collection, a.shared, a.worker, a.rows_in, a.rows_out, a.batches, a.busy_us, a.cpu_us,
           a.state_rows, a.state_bytes, a.state_exact, a.queued_rows, a.queued_bytes
      FROM pg_catalog.jsonb_to_recordset(
        headrace.ask_engine('view_stats', 'show_view_stats', headrace.find_view(name)))
      AS a(
          node pg_catalog.text, collection pg_catalog.text, shared pg_catalog.bool, worker pg_catalog.text, rows_in
          pg_catalog.int8, rows_out pg_catalog.int8, batches pg_catalog.int8, busy_us pg_catalog.int8, cpu_us
          pg_catalog.int8, state_rows pg_catalog.int8, state_bytes pg_catalog.int8, state_exact pg_catalog.bool,
          queued_rows pg_catalog.int8, queued_bytes pg_catalog.int8)
$$;
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
CREATE FUNCTION headrace.withdraw_tables() RETURNS event_trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '1s'
    AS $$
DECLARE
    lost record;
    told bytea;
BEGIN
    IF tg_tag <> 'ALTER TABLE' AND tg_tag NOT LIKE 'DROP %' THEN
        RETURN;
    END IF;
    FOR lost IN
        SELECT c.oid, n.nspname, c.relname, p.pubname,
               (SELECT token FROM headrace.carrier) AS token
          FROM headrace.meta m JOIN pg_publication p ON p.pubname = m.value
          JOIN pg_publication_rel r ON r.prpubid = p.oid
          JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE m.key = 'publication_name' AND NOT (EXISTS (
  SELECT FROM pg_catalog.pg_class identified
    LEFT JOIN pg_catalog.pg_index key ON key.indrelid = identified.oid AND key.indislive
     AND key.indisvalid AND key.indisunique AND key.indimmediate AND key.indpred IS NULL
     AND CASE identified.relreplident WHEN 'd' THEN key.indisprimary
           WHEN 'i' THEN key.indisreplident ELSE false END
   WHERE identified.oid = c.oid
     AND (identified.relreplident = 'f' OR key.indexrelid IS NOT NULL)
     AND (pg_catalog.current_setting('server_version_num')::pg_catalog.int4 < 180000
       OR NOT EXISTS (SELECT FROM pg_catalog.pg_attribute made
           WHERE made.attrelid = c.oid AND made.attgenerated <> '' AND NOT made.attisdropped
             AND (key.indexrelid IS NULL
               OR made.attnum = ANY (key.indkey::pg_catalog.int2[])))))
)
    LOOP
        BEGIN
            EXECUTE format('ALTER PUBLICATION %I DROP TABLE ONLY %I.%I',
                           lost.pubname, lost.nspname, lost.relname);
            told := 'R'::bytea || int4send(lost.oid::int8::int4)
                 || convert_to(lost.nspname, 'UTF8') || '\x00'
                 || convert_to(lost.relname, 'UTF8') || '\x00' || 'n'::bytea || int2send(1::int2)
                 || '\x00' || convert_to(pg_current_xact_id()::text, 'UTF8') || '\x00'
                 || int4send(25) || int4send(-1);
            PERFORM pg_logical_emit_message(true, 'headrace carrier ' || lost.token,
                                            int4send(length(told)) || told);
        EXCEPTION WHEN OTHERS THEN
            RAISE WARNING 'table %.% is still published: %', lost.nspname, lost.relname, sqlerrm;
        END;
    END LOOP;
END $$;
CREATE FUNCTION headrace.worker_position(OUT heard boolean, OUT lsn pg_lsn, OUT lag_ms bigint, OUT batch_s double precision, OUT busy_ms bigint) RETURNS SETOF record
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
    SELECT a.state IN ('active', 'disabled') OR a.state_change > clock_timestamp() - interval '10 s',
           p.found[1]::pg_lsn,
           CASE WHEN p.found IS NOT NULL THEN
                coalesce((1000 * (n.now - p.found[2]::numeric))::bigint, 0) END,
           t.batch_s,
           (1000 * greatest(t.batch_s, extract(epoch FROM clock_timestamp() - a.xact_start)))::bigint
      FROM headrace.meta m
      JOIN pg_stat_activity a ON m.value = a.pid || ' ' || extract(epoch FROM a.backend_start)
     CROSS JOIN (SELECT extract(epoch FROM clock_timestamp()) AS now) n
     CROSS JOIN LATERAL (SELECT regexp_match(a.application_name,
                                ' ([0-9A-F]+/[0-9A-F]+)(?: ([0-9]+[.][0-9]))?(?: busy [0-9.]+)?$')) p(found)
     CROSS JOIN LATERAL (SELECT (n.now - substring(a.application_name FROM ' busy ([0-9.]+)$')::numeric)::float8) t(batch_s)
     WHERE m.key = 'worker'
$_$;
CREATE FUNCTION headrace.worker_running() RETURNS boolean
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT EXISTS (SELECT FROM headrace.worker_position() p WHERE p.heard)
$$;
CREATE FUNCTION headrace.workers(OUT worker text, OUT state text, OUT pid bigint, OUT views bigint, OUT memory_bytes bigint, OUT since text, OUT address text, OUT cpu_s double precision, OUT moved text) RETURNS SETOF record
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT * FROM jsonb_to_recordset(headrace.ask_engine('workers', 'show_workers'))
      AS a(
          worker text, state text, pid bigint, views bigint, memory_bytes bigint, since text, address text,
          cpu_s double precision, moved text)
$$;
CREATE TABLE headrace.carrier (
    single boolean DEFAULT true NOT NULL,
    token text NOT NULL,
    CONSTRAINT carrier_single_check CHECK (single)
);
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
CREATE TABLE headrace.covered (
    view_id bigint NOT NULL,
    lsn pg_lsn NOT NULL,
    at timestamp with time zone
);
CREATE TABLE headrace.facts (
    fact text NOT NULL,
    value text NOT NULL,
    ok boolean,
    hint text,
    at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
ALTER TABLE headrace.feeds ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME headrace.feeds_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE headrace.held (
    view_id bigint NOT NULL,
    kind text NOT NULL,
    what text NOT NULL,
    since timestamp with time zone NOT NULL,
    lsn pg_lsn,
    CONSTRAINT held_kind_check CHECK ((kind = ANY (ARRAY['work'::text, 'source'::text, 'behind'::text, 'cursor'::text])))
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
    token bytea,
    address text,
    certificate text,
    seen_at timestamp with time zone,
    latency_ms bigint,
    bytes_per_s bigint,
    capacity integer DEFAULT 100 NOT NULL,
    lost_at timestamp with time zone,
    CONSTRAINT nodes_name_check CHECK (((name ~ '^[a-z][a-z0-9_]{0,19}$'::text) AND (name <> 'main'::text)))
);
CREATE TABLE headrace.origins (
    name text NOT NULL,
    dsn text NOT NULL,
    slot text NOT NULL,
    system_id text NOT NULL,
    timeline integer NOT NULL,
    published text NOT NULL,
    "position" pg_lsn NOT NULL,
    wanted pg_lsn NOT NULL,
    hold pg_lsn,
    state text DEFAULT 'starting'::text NOT NULL,
    problem text,
    changed bigint DEFAULT 0 NOT NULL,
    heard_at timestamp with time zone,
    added_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT origins_name_check CHECK (((name ~ '^[a-z][a-z0-9_]{0,19}$'::text) AND (name <> 'main'::text))),
    CONSTRAINT origins_state_check CHECK ((state = ANY (ARRAY['starting'::text, 'running'::text, 'down'::text, 'lost'::text])))
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
CREATE TABLE headrace.samples (
    view_id bigint NOT NULL,
    step_s integer NOT NULL,
    at timestamp with time zone NOT NULL,
    batches bigint,
    rows_per_s double precision,
    p50_ms double precision,
    p99_ms double precision,
    max_ms double precision,
    lag_ms bigint,
    lag_bytes bigint,
    state_bytes bigint
);
CREATE TABLE headrace.stand_ins (
    table_oid oid NOT NULL,
    source text NOT NULL,
    origin_oid oid NOT NULL,
    schema_name text NOT NULL,
    table_name text NOT NULL
);
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
    since timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    last_error text,
    last_error_at timestamp with time zone,
    placed_parts jsonb DEFAULT '{}'::jsonb NOT NULL,
    paused_by regrole,
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
INSERT INTO headrace.facts VALUES ('workers', 'main up', true, NULL, '2026-11-25 13:04:41.292635+00');
INSERT INTO headrace.facts VALUES ('memory', 'about 0 % of 1024 MB', true, NULL, '2026-11-25 13:04:41.292734+00');
INSERT INTO headrace.held VALUES (2, 'cursor', 'catching_up', '2026-11-28 12:47:02.295934+00', NULL);
INSERT INTO headrace.meta VALUES ('slot_name', 'headrace');
INSERT INTO headrace.meta VALUES ('release', '0.2.0');
INSERT INTO headrace.meta VALUES ('wal_budget_bytes', '10737418240');
INSERT INTO headrace.meta VALUES ('wal_retention', 'source');
INSERT INTO headrace.meta VALUES ('epoch', '1');
INSERT INTO headrace.meta VALUES ('worker', '26136 1795611881.162162');
INSERT INTO headrace.meta VALUES ('commander', '26157 1795611881.255425');
INSERT INTO headrace.meta VALUES ('version', '4');
INSERT INTO headrace.meta VALUES ('installed', '0fa9966b5dbe3f6e71f2cacc6602695ba8bb9a12c99be8a903db88298a1d966f eb710811dad62fb38179948b1cbe6e2b');
INSERT INTO headrace.progress VALUES (1, 1, 0, 0, '0/1A02AF8', NULL, '2026-11-25 13:04:41.514293+00');
INSERT INTO headrace.progress VALUES (2, 1, 0, 0, '0/1A0B680', NULL, '2026-11-25 13:04:41.767587+00');
INSERT INTO headrace.view_tables VALUES (1, 16385, 'public', 'spans');
INSERT INTO headrace.view_tables VALUES (2, 16385, 'public', 'spans');
INSERT INTO headrace.views VALUES (2, 'public', 'several', 'SELECT k, count(*) AS n FROM spans GROUP BY k', '[{"oid": 23, "kind": "Field", "name": "k", "typmod": -1, "collation": 0}, {"oid": 20, "kind": "Field", "name": "n", "typmod": -1, "collation": 0}]', '{"kind": "PhysicalPlan", "nodes": [{"id": "source_1", "key": [{"oid": 23, "kind": "SourceColumn", "name": "id", "attnum": 1, "typmod": -1, "collation": 0}], "kind": "Source", "schema": [{"oid": 23, "kind": "Field", "name": "k", "typmod": -1, "collation": 0}], "wanted": [], "columns": [{"oid": 23, "kind": "SourceColumn", "name": "k", "attnum": 2, "typmod": -1, "collation": 0}], "pushdown": [], "table_oid": 16385, "table_name": "spans", "schema_name": "public", "full_identity": false}, {"id": "reduce_1", "keys": [0], "kind": "Reduce", "input": "source_1", "always": [], "schema": [{"oid": 23, "kind": "Field", "name": "spans.k", "typmod": -1, "collation": 0}, {"oid": 20, "kind": "Field", "name": "count(*)", "typmod": -1, "collation": 0}], "aggregates": [{"row": [], "sql": "", "kind": "Aggregate", "more": [], "direct": 0, "filter": null, "result": {"oid": 20, "kind": "Field", "name": "count(*)", "typmod": -1, "collation": 0}, "trusted": true, "argument": null, "distinct": false, "function": "count_star", "shows_order": false}]}, {"id": "sink_1", "key": [], "kind": "Sink", "input": "reduce_1", "schema": [{"oid": 23, "kind": "Field", "name": "k", "typmod": -1, "collation": 0}, {"oid": 20, "kind": "Field", "name": "n", "typmod": -1, "collation": 0}]}], "version": 2}', '{"key": "could have key (k), proved; that there is no NULL in k would be checked", "graphs": [{"root": "1", "named": false, "nodes": [{"id": "1", "kind": "Project", "detail": "[spans.k, count(*) AS n]", "inputs": ["2"], "columns": [{"name": "k", "type": "integer"}, {"name": "n", "type": "bigint"}]}, {"id": "2", "kind": "Aggregate", "detail": "[count(*)] by [spans.k]", "inputs": ["3"], "columns": [{"name": "spans.k", "type": "integer"}, {"name": "count(*)", "type": "bigint"}]}, {"id": "3", "kind": "Scan", "detail": "public.spans [id, k, i]", "columns": [{"name": "id", "type": "integer"}, {"name": "k", "type": "integer"}, {"name": "i", "type": "interval"}]}], "notes": [], "stage": "logical", "version": 1}, {"root": "1", "named": false, "nodes": [{"id": "1", "kind": "Aggregate", "detail": "[count(*)] by [spans.k]", "inputs": ["2"], "columns": [{"name": "spans.k", "type": "integer"}, {"name": "count(*)", "type": "bigint"}]}, {"id": "2", "kind": "Scan", "detail": "public.spans [k]", "columns": [{"name": "k", "type": "integer"}]}], "notes": [], "stage": "optimised", "version": 1}, {"root": "sink_1", "named": true, "nodes": [{"id": "sink_1", "cost": "O(changed result rows)", "kind": "Sink", "detail": "[k, n]", "inputs": ["reduce_1"], "columns": [{"name": "k", "type": "integer"}, {"name": "n", "type": "bigint"}]}, {"id": "reduce_1", "cost": "O(changes + touched groups)", "kind": "Reduce", "state": "groups", "detail": "[count(*)] by [spans.k]", "inputs": ["source_1"], "columns": [{"name": "spans.k", "type": "integer"}, {"name": "count(*)", "type": "bigint"}]}, {"id": "source_1", "cost": "O(changes), one read per changed row", "kind": "Source", "state": "all rows", "detail": "public.spans [k] key id", "columns": [{"name": "k", "type": "integer"}]}], "notes": [], "stage": "physical", "version": 1}, {"root": "query", "named": false, "nodes": [{"id": "query", "kind": "Query", "inputs": ["column_1", "column_2"]}, {"id": "column_1", "kind": "Column", "more": {"16385.2": "same"}, "detail": "k", "inputs": ["16385.2"]}, {"id": "column_2", "kind": "Column", "more": {"16385.0": "aggregated"}, "detail": "n", "inputs": ["16385.0"]}, {"id": "16385.0", "kind": "TableColumn", "detail": "public.spans.*"}, {"id": "16385.2", "kind": "TableColumn", "detail": "public.spans.k"}], "notes": [], "stage": "lineage", "version": 1}], "lineage": "k <- public.spans.k\nn <- public.spans.* (aggregated)", "logical": "Project [spans.k, count(*) AS n]\n  Aggregate [count(*)] by [spans.k]\n    Scan public.spans [id, k, i]", "origins": [{"from": [{"how": "same", "oid": 16385, "name": "k", "table": "spans", "attnum": 2, "schema": "public"}], "column": "k"}, {"from": [{"how": "aggregated", "oid": 16385, "name": "", "table": "spans", "attnum": 0, "schema": "public"}], "column": "n"}], "sources": "Table public.spans by key", "physical": "sink_1 Sink [k, n]  | O(changed result rows)\n  reduce_1 Reduce [count(*)] by [spans.k]  | keeps groups; O(changes + touched groups)\n    source_1 Source public.spans [k] key id  | keeps all rows; O(changes), one read per changed row", "optimised": "Aggregate [count(*)] by [spans.k]\n  Scan public.spans [k]"}', '{}', '{"lc_time": "C.UTF-8", "TimeZone": "UTC", "DateStyle": "ISO, MDY", "xmlbinary": "base64", "xmloption": "content", "lc_numeric": "C.UTF-8", "lc_monetary": "C.UTF-8", "bytea_output": "hex", "IntervalStyle": "postgres", "extra_float_digits": "1", "quote_all_identifiers": "off", "timezone_abbreviations": "Default", "default_text_search_config": "pg_catalog.english"}', 'postgres', 16742, '0/1A0B680', 'running', NULL, NULL, true, '2026-11-25 13:04:41.630546+00', '{"seen": "747:747:", "lacks": [], "owner": 10, "views": {}, "rights": [["owner", 10, 0, [], 0], ["reader", 10, 0, [], 0], ["execute", 10, 2803, [], 0], ["open", 10, 16385, [], 0], ["select", 10, 16385, [2], 0], ["usage", 10, 2200, [], 0]], "tables": {"16385": {"key": [1], "kind": "r", "name": "spans", "parent": false, "schema": "public", "columns": {"1": {"name": "id", "type": 23, "typmod": -1, "written": "725", "not_null": true, "collation": 0, "generated": "", "expression": null}, "2": {"name": "k", "type": 23, "typmod": -1, "written": "725", "not_null": false, "collation": 0, "generated": "", "expression": null}}, "storage": 16385, "identity": "d", "partition": false, "published": {"oid": 16727, "whole": true}, "attributes": [[1, "id", true, "725"], [2, "k", true, "725"], [3, "i", true, "725"]], "persistence": "p"}}, "results": {}, "relations": {"16385": {"name": "public.spans", "members": [16385], "inherits": true}}, "definitions": {"deep": false, "words": [], "called": null, "objects": {}}, "publication": {"oid": 16717, "whole": true, "written": "734"}}', 'SELECT spans.k,
    count(*) AS n
   FROM public.spans
  GROUP BY spans.k;', '[{"oid": 16387, "kind": "type", "name": "spans", "schema": "public"}, {"oid": 16385, "name": "spans", "count": 1, "schema": "public", "columns": [[1, "id"], [2, "k"], [3, "i"]]}]', 0, NULL, NULL, NULL, NULL, NULL, NULL, '2026-11-25 13:04:41.768929+00', NULL, NULL, '{}', NULL);
INSERT INTO headrace.views VALUES (1, 'public', 'groups', 'SELECT i, count(*) AS n FROM spans GROUP BY i', '[{"oid": 1186, "kind": "Field", "name": "i", "typmod": -1, "collation": 0}, {"oid": 20, "kind": "Field", "name": "n", "typmod": -1, "collation": 0}]', '{"kind": "PhysicalPlan", "nodes": [{"id": "source_1", "key": [{"oid": 23, "kind": "SourceColumn", "name": "id", "attnum": 1, "typmod": -1, "collation": 0}], "kind": "Source", "schema": [{"oid": 1186, "kind": "Field", "name": "i", "typmod": -1, "collation": 0}], "wanted": [], "columns": [{"oid": 1186, "kind": "SourceColumn", "name": "i", "attnum": 3, "typmod": -1, "collation": 0}], "pushdown": [], "table_oid": 16385, "table_name": "spans", "schema_name": "public", "full_identity": false}, {"id": "reduce_1", "keys": [0], "kind": "Reduce", "input": "source_1", "always": [], "schema": [{"oid": 1186, "kind": "Field", "name": "spans.i", "typmod": -1, "collation": 0}, {"oid": 1186, "kind": "Field", "name": "spans.i", "typmod": -1, "collation": 0}, {"oid": 20, "kind": "Field", "name": "count(*)", "typmod": -1, "collation": 0}], "aggregates": [{"row": [], "sql": "", "kind": "Aggregate", "more": [], "direct": 0, "filter": null, "result": {"oid": 1186, "kind": "Field", "name": "spans.i", "typmod": -1, "collation": 0}, "trusted": true, "argument": 0, "distinct": false, "function": "any", "shows_order": false}, {"row": [], "sql": "", "kind": "Aggregate", "more": [], "direct": 0, "filter": null, "result": {"oid": 20, "kind": "Field", "name": "count(*)", "typmod": -1, "collation": 0}, "trusted": true, "argument": null, "distinct": false, "function": "count_star", "shows_order": false}]}, {"id": "map_1", "kind": "Map", "input": "reduce_1", "schema": [{"oid": 1186, "kind": "Field", "name": "i", "typmod": -1, "collation": 0}, {"oid": 20, "kind": "Field", "name": "n", "typmod": -1, "collation": 0}], "expressions": [{"oid": 1186, "kind": "Column", "index": 1, "typmod": -1, "collation": 0}, {"oid": 20, "kind": "Column", "index": 2, "typmod": -1, "collation": 0}]}, {"id": "sink_1", "key": [], "kind": "Sink", "input": "map_1", "schema": [{"oid": 1186, "kind": "Field", "name": "i", "typmod": -1, "collation": 0}, {"oid": 20, "kind": "Field", "name": "n", "typmod": -1, "collation": 0}]}], "version": 2}', '{"key": "key: none proved; what option \"key\" names would be checked", "graphs": [{"root": "1", "named": false, "nodes": [{"id": "1", "kind": "Project", "detail": "[spans.i, count(*) AS n]", "inputs": ["2"], "columns": [{"name": "i", "type": "interval"}, {"name": "n", "type": "bigint"}]}, {"id": "2", "kind": "Aggregate", "detail": "[any(spans.i), count(*)] by [spans.i]", "inputs": ["3"], "columns": [{"name": "spans.i", "type": "interval"}, {"name": "spans.i", "type": "interval"}, {"name": "count(*)", "type": "bigint"}]}, {"id": "3", "kind": "Scan", "detail": "public.spans [id, k, i]", "columns": [{"name": "id", "type": "integer"}, {"name": "k", "type": "integer"}, {"name": "i", "type": "interval"}]}], "notes": [], "stage": "logical", "version": 1}, {"root": "1", "named": false, "nodes": [{"id": "1", "kind": "Project", "detail": "[spans.i, count(*) AS n]", "inputs": ["2"], "columns": [{"name": "i", "type": "interval"}, {"name": "n", "type": "bigint"}]}, {"id": "2", "kind": "Aggregate", "detail": "[any(spans.i), count(*)] by [spans.i]", "inputs": ["3"], "columns": [{"name": "spans.i", "type": "interval"}, {"name": "spans.i", "type": "interval"}, {"name": "count(*)", "type": "bigint"}]}, {"id": "3", "kind": "Scan", "detail": "public.spans [i]", "columns": [{"name": "i", "type": "interval"}]}], "notes": [], "stage": "optimised", "version": 1}, {"root": "sink_1", "named": true, "nodes": [{"id": "sink_1", "cost": "O(changed result rows)", "kind": "Sink", "detail": "[i, n]", "inputs": ["map_1"], "columns": [{"name": "i", "type": "interval"}, {"name": "n", "type": "bigint"}]}, {"id": "map_1", "cost": "O(changes)", "kind": "Map", "detail": "[spans.i, count(*) AS n]", "inputs": ["reduce_1"], "columns": [{"name": "i", "type": "interval"}, {"name": "n", "type": "bigint"}]}, {"id": "reduce_1", "cost": "O(changes + touched groups)", "kind": "Reduce", "state": "groups and values", "detail": "[any(spans.i), count(*)] by [spans.i]", "inputs": ["source_1"], "columns": [{"name": "spans.i", "type": "interval"}, {"name": "spans.i", "type": "interval"}, {"name": "count(*)", "type": "bigint"}]}, {"id": "source_1", "cost": "O(changes), one read per changed row", "kind": "Source", "state": "all rows", "detail": "public.spans [i] key id", "columns": [{"name": "i", "type": "interval"}]}], "notes": [], "stage": "physical", "version": 1}, {"root": "query", "named": false, "nodes": [{"id": "query", "kind": "Query", "inputs": ["column_1", "column_2"]}, {"id": "column_1", "kind": "Column", "more": {"16385.3": "same"}, "detail": "i", "inputs": ["16385.3"]}, {"id": "column_2", "kind": "Column", "more": {"16385.0": "aggregated"}, "detail": "n", "inputs": ["16385.0"]}, {"id": "16385.0", "kind": "TableColumn", "detail": "public.spans.*"}, {"id": "16385.3", "kind": "TableColumn", "detail": "public.spans.i"}], "notes": [], "stage": "lineage", "version": 1}], "lineage": "i <- public.spans.i\nn <- public.spans.* (aggregated)", "logical": "Project [spans.i, count(*) AS n]\n  Aggregate [any(spans.i), count(*)] by [spans.i]\n    Scan public.spans [id, k, i]", "origins": [{"from": [{"how": "same", "oid": 16385, "name": "i", "table": "spans", "attnum": 3, "schema": "public"}], "column": "i"}, {"from": [{"how": "aggregated", "oid": 16385, "name": "", "table": "spans", "attnum": 0, "schema": "public"}], "column": "n"}], "sources": "Table public.spans by key", "physical": "sink_1 Sink [i, n]  | O(changed result rows)\n  map_1 Map [spans.i, count(*) AS n]  | O(changes)\n    reduce_1 Reduce [any(spans.i), count(*)] by [spans.i]  | keeps groups and values; O(changes + touched groups)\n      source_1 Source public.spans [i] key id  | keeps all rows; O(changes), one read per changed row", "optimised": "Project [spans.i, count(*) AS n]\n  Aggregate [any(spans.i), count(*)] by [spans.i]\n    Scan public.spans [i]"}', '{}', '{"lc_time": "C.UTF-8", "TimeZone": "UTC", "DateStyle": "ISO, MDY", "xmlbinary": "base64", "xmloption": "content", "lc_numeric": "C.UTF-8", "lc_monetary": "C.UTF-8", "bytea_output": "hex", "IntervalStyle": "postgres", "extra_float_digits": "1", "quote_all_identifiers": "off", "timezone_abbreviations": "Default", "default_text_search_config": "pg_catalog.english"}', 'postgres', 16728, '0/1A02AF8', 'paused', NULL, NULL, true, '2026-11-25 13:04:41.379668+00', '{"seen": "742:742:", "lacks": [], "owner": 10, "views": {}, "rights": [["owner", 10, 0, [], 0], ["reader", 10, 0, [], 0], ["execute", 10, 2803, [], 0], ["open", 10, 16385, [], 0], ["select", 10, 16385, [3], 0], ["usage", 10, 2200, [], 0]], "tables": {"16385": {"key": [1], "kind": "r", "name": "spans", "parent": false, "schema": "public", "columns": {"1": {"name": "id", "type": 23, "typmod": -1, "written": "725", "not_null": true, "collation": 0, "generated": "", "expression": null}, "3": {"name": "i", "type": 1186, "typmod": -1, "written": "725", "not_null": false, "collation": 0, "generated": "", "expression": null}}, "storage": 16385, "identity": "d", "partition": false, "published": {"oid": 16727, "whole": true}, "attributes": [[1, "id", true, "725"], [2, "k", true, "725"], [3, "i", true, "725"]], "persistence": "p"}}, "results": {}, "relations": {"16385": {"name": "public.spans", "members": [16385], "inherits": true}}, "definitions": {"deep": false, "words": [], "called": null, "objects": {}}, "publication": {"oid": 16717, "whole": true, "written": "734"}}', 'SELECT spans.i,
    count(*) AS n
   FROM public.spans
  GROUP BY spans.i;', '[{"oid": 16387, "kind": "type", "name": "spans", "schema": "public"}, {"oid": 16385, "name": "spans", "count": 1, "schema": "public", "columns": [[1, "id"], [2, "k"], [3, "i"]]}]', 0, NULL, NULL, NULL, NULL, NULL, NULL, '2026-11-27 02:59:08.891436+00', NULL, NULL, '{}', NULL);
SELECT pg_catalog.setval('headrace.commands_id_seq', 1, false);
SELECT pg_catalog.setval('headrace.feeds_id_seq', 1, false);
SELECT pg_catalog.setval('headrace.histories_id_seq', 1, false);
SELECT pg_catalog.setval('headrace.views_id_seq', 2, true);
ALTER TABLE ONLY headrace.carrier
    ADD CONSTRAINT carrier_pkey PRIMARY KEY (single);
ALTER TABLE ONLY headrace.commands
    ADD CONSTRAINT commands_pkey PRIMARY KEY (id);
ALTER TABLE ONLY headrace.covered
    ADD CONSTRAINT covered_pkey PRIMARY KEY (view_id);
ALTER TABLE ONLY headrace.facts
    ADD CONSTRAINT facts_pkey PRIMARY KEY (fact);
ALTER TABLE ONLY headrace.feeds
    ADD CONSTRAINT feeds_owner_name_key UNIQUE (owner, name);
ALTER TABLE ONLY headrace.feeds
    ADD CONSTRAINT feeds_pkey PRIMARY KEY (id);
ALTER TABLE ONLY headrace.held
    ADD CONSTRAINT held_pkey PRIMARY KEY (view_id, kind);
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
ALTER TABLE ONLY headrace.origins
    ADD CONSTRAINT origins_pkey PRIMARY KEY (name);
ALTER TABLE ONLY headrace.origins
    ADD CONSTRAINT origins_slot_key UNIQUE (slot);
ALTER TABLE ONLY headrace.points
    ADD CONSTRAINT points_pkey PRIMARY KEY (name);
ALTER TABLE ONLY headrace.progress
    ADD CONSTRAINT progress_pkey PRIMARY KEY (view_id);
ALTER TABLE ONLY headrace.samples
    ADD CONSTRAINT samples_pkey PRIMARY KEY (view_id, step_s, at);
ALTER TABLE ONLY headrace.stand_ins
    ADD CONSTRAINT stand_ins_pkey PRIMARY KEY (table_oid);
ALTER TABLE ONLY headrace.stand_ins
    ADD CONSTRAINT stand_ins_source_origin_oid_key UNIQUE (source, origin_oid);
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
CREATE INDEX views_stopped ON headrace.views USING btree (id) WHERE (status = 'error'::text);
CREATE TRIGGER stamp BEFORE INSERT ON headrace.commands FOR EACH ROW EXECUTE FUNCTION headrace.stamp_command();
ALTER TABLE headrace.commands ENABLE ALWAYS TRIGGER stamp;
ALTER TABLE ONLY headrace.covered
    ADD CONSTRAINT covered_view_id_fkey FOREIGN KEY (view_id) REFERENCES headrace.progress(view_id) ON DELETE CASCADE;
ALTER TABLE ONLY headrace.held
    ADD CONSTRAINT held_view_id_fkey FOREIGN KEY (view_id) REFERENCES headrace.views(id) ON UPDATE CASCADE ON DELETE CASCADE;
ALTER TABLE ONLY headrace.histories
    ADD CONSTRAINT histories_view_id_fkey FOREIGN KEY (view_id) REFERENCES headrace.views(id) ON UPDATE CASCADE ON DELETE CASCADE;
ALTER TABLE ONLY headrace.history
    ADD CONSTRAINT history_history_id_fkey FOREIGN KEY (history_id) REFERENCES headrace.histories(id) ON DELETE CASCADE;
ALTER TABLE ONLY headrace.points
    ADD CONSTRAINT points_view_id_fkey FOREIGN KEY (view_id) REFERENCES headrace.views(id) ON UPDATE CASCADE ON DELETE CASCADE;
ALTER TABLE ONLY headrace.progress
    ADD CONSTRAINT progress_view_id_fkey FOREIGN KEY (view_id) REFERENCES headrace.views(id) ON DELETE CASCADE;
ALTER TABLE ONLY headrace.samples
    ADD CONSTRAINT samples_view_id_fkey FOREIGN KEY (view_id) REFERENCES headrace.views(id) ON UPDATE CASCADE ON DELETE CASCADE;
ALTER TABLE ONLY headrace.stand_ins
    ADD CONSTRAINT stand_ins_source_fkey FOREIGN KEY (source) REFERENCES headrace.origins(name) ON DELETE CASCADE;
ALTER TABLE ONLY headrace.view_tables
    ADD CONSTRAINT view_tables_view_id_fkey FOREIGN KEY (view_id) REFERENCES headrace.views(id) ON DELETE CASCADE;
ALTER TABLE ONLY headrace.view_uses
    ADD CONSTRAINT view_uses_view_id_fkey FOREIGN KEY (view_id) REFERENCES headrace.views(id) ON DELETE CASCADE;
ALTER TABLE headrace.carrier ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.commands ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.covered ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.facts ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.feeds ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.held ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.histories ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.history ENABLE ROW LEVEL SECURITY;
CREATE POLICY made ON headrace.feeds FOR INSERT WITH CHECK (((owner IN ( SELECT r.oid
   FROM pg_roles r
  WHERE pg_has_role(r.oid, 'USAGE'::text))) AND (history_id IN ( SELECT h.id
   FROM headrace.histories h)) AND headrace.has_room_for_feed(owner)));
ALTER TABLE headrace.made_schemas ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.meta ENABLE ROW LEVEL SECURITY;
CREATE POLICY moved ON headrace.feeds FOR UPDATE USING ((owner IN ( SELECT r.oid
   FROM pg_roles r
  WHERE pg_has_role(r.oid, 'USAGE'::text))));
ALTER TABLE headrace.nodes ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.origins ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON headrace.commands FOR SELECT USING ((caller = ( SELECT ((quote_ident((CURRENT_USER)::text))::regrole)::oid AS quote_ident)));
CREATE POLICY own ON headrace.facts FOR SELECT USING (pg_has_role(( SELECT c.relowner
   FROM pg_class c
  WHERE (c.oid = ('headrace.facts'::regclass)::oid)), 'USAGE'::text));
CREATE POLICY own ON headrace.feeds FOR SELECT USING ((owner IN ( SELECT r.oid
   FROM pg_roles r
  WHERE pg_has_role(r.oid, 'USAGE'::text))));
CREATE POLICY own ON headrace.held FOR SELECT USING ((view_id IN ( SELECT v.id
   FROM headrace.views v)));
CREATE POLICY own ON headrace.points FOR SELECT USING ((view_id IN ( SELECT v.id
   FROM headrace.views v)));
CREATE POLICY own ON headrace.progress FOR SELECT USING ((view_id IN ( SELECT v.id
   FROM headrace.views v)));
CREATE POLICY own ON headrace.samples FOR SELECT USING ((view_id IN ( SELECT v.id
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
CREATE POLICY readers ON headrace.covered FOR SELECT USING ((view_id IN ( SELECT h.view_id
   FROM headrace.histories h)));
CREATE POLICY readers ON headrace.histories FOR SELECT USING ((has_table_privilege(result_oid, 'SELECT'::text) AND (NOT row_security_active(result_oid))));
CREATE POLICY readers ON headrace.history FOR SELECT USING ((history_id IN ( SELECT h.id
   FROM headrace.histories h)));
CREATE POLICY readers ON headrace.progress FOR SELECT USING ((view_id IN ( SELECT h.view_id
   FROM headrace.histories h)));
ALTER TABLE headrace.samples ENABLE ROW LEVEL SECURITY;
CREATE POLICY send ON headrace.commands FOR INSERT WITH CHECK ((caller = ((quote_ident((CURRENT_USER)::text))::regrole)::oid));
ALTER TABLE headrace.stand_ins ENABLE ROW LEVEL SECURITY;
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
GRANT SELECT ON TABLE headrace.covered TO PUBLIC;
GRANT SELECT ON TABLE headrace.facts TO PUBLIC;
GRANT SELECT ON TABLE headrace.held TO PUBLIC;
GRANT SELECT ON TABLE headrace.history TO PUBLIC;
GRANT SELECT ON TABLE headrace.meta TO PUBLIC;
GRANT SELECT ON TABLE headrace.points TO PUBLIC;
GRANT SELECT ON TABLE headrace.progress TO PUBLIC;
GRANT SELECT ON TABLE headrace.samples TO PUBLIC;
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
GRANT SELECT(since) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(last_error) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(last_error_at) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(placed_parts) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(paused_by) ON TABLE headrace.views TO PUBLIC;
