-- Schema headrace as commit 44072ea left it (catalog 5): catalog 4 upgraded, with the history of a view.
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
CREATE FUNCTION headrace.assertion_rows(view_id bigint) RETURNS bigint
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET row_security TO 'on'
    AS $$
    SELECT CASE WHEN a.fill_txid > a.txid THEN a.fill_rows ELSE a.count END + coalesce((
               SELECT sum(t.net) FROM headrace.history t
                WHERE t.history_id = h.id AND t.txid > greatest(a.txid, a.fill_txid)), 0)::bigint
      FROM headrace.assertion_states a JOIN headrace.histories h ON h.view_id = a.view_id
     WHERE a.view_id = assertion_rows.view_id
$$;
CREATE FUNCTION headrace.at_work() RETURNS text
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    AS $$
    SELECT string_agg(format('%I.%I', v.schema_name, v.view_name), ', ' ORDER BY h.since, v.id)
      FROM headrace.held h JOIN headrace.views v ON v.id = h.view_id WHERE h.kind = 'work'
$$;
CREATE FUNCTION headrace.batch_s() RETURNS double precision
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    AS $$
    SELECT p.batch_s FROM headrace.worker_position() p
$$;
CREATE FUNCTION headrace.batches(OUT txid bigint, OUT attempt bigint, OUT state text, OUT at text, OUT transactions bigint, OUT rows bigint, OUT views bigint, OUT process_us bigint, OUT wait_us bigint, OUT write_us bigint, OUT fresh_us bigint) RETURNS SETOF record
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    AS $$
    SELECT * FROM jsonb_to_recordset(headrace.ask_engine('batches', 'show_batches'))
      AS a(
          txid bigint, attempt bigint, state text, at text, transactions bigint, rows bigint, views bigint,
          process_us bigint, wait_us bigint, write_us bigint, fresh_us bigint)
$$;
CREATE FUNCTION headrace.calls(OUT id bigint, OUT procedure text, OUT name text, OUT status text, OUT called_at timestamp with time zone, OUT finished_at timestamp with time zone, OUT sqlstate text, OUT message text, OUT detail text, OUT hint text) RETURNS SETOF record
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    AS $$
    SELECT c.id, c.procedure, c.subject, c.status, c.created_at, c.finished_at, c.error ->> 'C', c.error ->> 'M',
           c.error ->> 'D', c.error ->> 'H'
      FROM headrace.commands c
     WHERE c.queued AND c.caller = quote_ident(CURRENT_USER)::regrole::oid ORDER BY c.id
$$;
CREATE FUNCTION headrace.captured_settings() RETURNS jsonb
    LANGUAGE sql STABLE
    AS $$ SELECT pg_catalog.jsonb_object_agg(s.name, pg_catalog.current_setting(s.name)) FROM pg_catalog.unnest('{TimeZone, DateStyle, IntervalStyle, extra_float_digits, bytea_output, lc_monetary, lc_numeric, lc_time, xmloption, xmlbinary, default_text_search_config, timezone_abbreviations, quote_all_identifiers, standard_conforming_strings, backslash_quote, array_nulls, transform_null_equals, search_path}'::pg_catalog.text[]) AS s (name) $$;
CREATE FUNCTION headrace.client_stats(OUT database text, OUT clients bigint, OUT clients_total bigint, OUT queries bigint, OUT received_bytes bigint, OUT sent_bytes bigint, OUT calls bigint, OUT call_errors bigint, OUT call_us bigint) RETURNS SETOF record
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    AS $$
    SELECT * FROM jsonb_to_recordset(headrace.ask_engine('client_stats', 'show_client_stats'))
      AS a(
          database text, clients bigint, clients_total bigint, queries bigint, received_bytes bigint,
          sent_bytes bigint, calls bigint, call_errors bigint, call_us bigint)
$$;
CREATE FUNCTION headrace.clients(OUT id bigint, OUT role text, OUT database text, OUT application_name text, OUT state text, OUT transaction text, OUT call text, OUT call_ms bigint, OUT connected_at text, OUT idle_ms bigint, OUT queries bigint, OUT received_bytes bigint, OUT sent_bytes bigint, OUT address text, OUT port bigint, OUT tls text, OUT server_pid bigint, OUT server_tls text) RETURNS SETOF record
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
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
    SET jit TO 'off'
    AS $$
    SELECT c.result FROM headrace.commands c
     WHERE c.id = command AND c.caller = quote_ident(CURRENT_USER)::regrole::oid
$$;
CREATE FUNCTION headrace.connection_points(OUT name text, OUT view text, OUT history interval, OUT storage_key text, OUT since timestamp with time zone, OUT attached text[]) RETURNS SETOF record
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
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
    SET jit TO 'off'
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
    SET jit TO 'off'
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
CREATE FUNCTION headrace.has_room_for_feed(role oid) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    AS $$
BEGIN
    RETURN (SELECT count(*) FROM headrace.feeds f WHERE f.owner = role) < 1000;
END
$$;
CREATE FUNCTION headrace.history_lost(view regclass, wanted text, last bigint) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
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
CREATE FUNCTION headrace.history_times(times numeric) RETURNS bigint
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
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
    SET jit TO 'off'
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
CREATE FUNCTION headrace.links(OUT worker text, OUT kind text, OUT up boolean, OUT latency_us bigint, OUT bandwidth bigint, OUT most bigint, OUT out_bytes_per_s bigint, OUT in_bytes_per_s bigint, OUT packed boolean, OUT overridden boolean) RETURNS SETOF record
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    AS $$
    SELECT * FROM jsonb_to_recordset(headrace.ask_engine('links', 'show_links'))
      AS a(
          worker text, kind text, up boolean, latency_us bigint, bandwidth bigint, most bigint,
          out_bytes_per_s bigint, in_bytes_per_s bigint, packed boolean, overridden boolean)
$$;
CREATE FUNCTION headrace.memory(OUT part text, OUT view text, OUT bytes bigint, OUT limit_bytes bigint) RETURNS SETOF record
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    AS $$
    SELECT * FROM jsonb_to_recordset(headrace.ask_engine('memory', 'show_memory'))
      AS a(
          part text, view text, bytes bigint, limit_bytes bigint)
$$;
CREATE FUNCTION headrace.queues(OUT queue text, OUT reader text, OUT node text, OUT queued_rows bigint, OUT queued_bytes bigint, OUT blocks bigint, OUT contiguous boolean, OUT resident_bytes bigint, OUT base_txid bigint, OUT front_txid bigint, OUT tail_txid bigint, OUT head_txid bigint, OUT behind_bytes bigint, OUT kind text, OUT priority bigint, OUT resident_pct bigint, OUT running boolean) RETURNS SETOF record
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    AS $$
    SELECT * FROM jsonb_to_recordset(headrace.ask_engine('queues', 'show_queues'))
      AS a(
          queue text, reader text, node text, queued_rows bigint, queued_bytes bigint, blocks bigint,
          contiguous boolean, resident_bytes bigint, base_txid bigint, front_txid bigint, tail_txid bigint,
          head_txid bigint, behind_bytes bigint, kind text, priority bigint, resident_pct bigint, running boolean)
$$;
CREATE FUNCTION headrace.raise_error(failed jsonb) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    AS $$
BEGIN
    -- An option of RAISE cannot be NULL, and an empty DETAIL would be shown.
    IF failed ? 'D' AND failed ? 'H' THEN
        RAISE EXCEPTION USING ERRCODE = failed ->> 'C', MESSAGE = failed ->> 'M',
            DETAIL = failed ->> 'D', HINT = failed ->> 'H';
    ELSIF failed ? 'D' THEN
        RAISE EXCEPTION USING ERRCODE = failed ->> 'C', MESSAGE = failed ->> 'M', DETAIL = failed ->> 'D';
    ELSIF failed ? 'H' THEN
        RAISE EXCEPTION USING ERRCODE = failed ->> 'C', MESSAGE = failed ->> 'M', HINT = failed ->> 'H';
    END IF;
    RAISE EXCEPTION USING ERRCODE = failed ->> 'C', MESSAGE = failed ->> 'M';
END
$$;
CREATE FUNCTION headrace.rebalance(apply boolean DEFAULT false, OUT view text, OUT worker_now text, OUT worker_then text, OUT busy_us bigint, OUT moved boolean, OUT problem text) RETURNS SETOF record
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    AS $$
    SELECT * FROM jsonb_to_recordset(headrace.ask_engine(
            'rebalance', 'show_rebalance', 0, coalesce(apply, false), coalesce(apply, false), apply))
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
CREATE FUNCTION headrace.refused_commit() RETURNS text
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    AS $$
BEGIN
    COMMIT;
    RETURN NULL;
EXCEPTION WHEN invalid_transaction_termination THEN
    RETURN SQLERRM;
END
$$;
CREATE FUNCTION headrace.settings(OUT name text, OUT value text, OUT initial text, OUT reloads boolean) RETURNS SETOF record
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    AS $$
    SELECT * FROM jsonb_to_recordset(headrace.ask_engine('settings', 'show_settings'))
      AS a(
          name text, value text, initial text, reloads boolean)
$$;
CREATE FUNCTION headrace.sources(OUT source text, OUT state text, OUT "position" text, OUT lag_bytes bigint, OUT changes bigint, OUT heard_at text, OUT views bigint, OUT tables bigint, OUT problem text) RETURNS SETOF record
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    AS $$
    SELECT * FROM jsonb_to_recordset(headrace.ask_engine('sources', 'show_sources'))
      AS a(
          source text, state text, "position" text, lag_bytes bigint, changes bigint, heard_at text, views bigint,
          tables bigint, problem text)
$$;
CREATE FUNCTION headrace.stamp_command() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
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
    NEW.subject := left(NEW.arguments ->> 'name', 200);
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
CREATE FUNCTION headrace.verify_view(name text, in_postgres boolean DEFAULT false, OUT surplus bigint, OUT missing bigint, OUT contents text) RETURNS SETOF record
    LANGUAGE sql
    AS $$
    SELECT a.surplus, a.missing, a.contents
      FROM pg_catalog.jsonb_to_recordset(
        headrace.ask_engine('verify_view', 'verify', headrace.find_view(name), true, false, in_postgres))
      AS a(
          surplus pg_catalog.int8, missing pg_catalog.int8, contents pg_catalog.text)
$$;
CREATE FUNCTION headrace.view_as_of(view anyelement, txid bigint DEFAULT NULL::bigint, lsn pg_lsn DEFAULT NULL::pg_lsn, at timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS SETOF anyelement
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
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
    SET jit TO 'off'
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
CREATE FUNCTION headrace.view_diff(view regclass, since bigint DEFAULT NULL::bigint, until bigint DEFAULT NULL::bigint, since_at timestamp with time zone DEFAULT NULL::timestamp with time zone, until_at timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS TABLE(change text, times bigint, before text, after text)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET row_security TO 'on'
    AS $$
#variable_conflict use_variable
BEGIN
    IF num_nonnulls(since, since_at) <> 1 OR num_nonnulls(until, until_at) > 1 OR since_at > until_at THEN
        RAISE EXCEPTION USING ERRCODE = '22023',
            MESSAGE = 'view_diff takes since or since_at, and until or until_at after it, or neither for the present',
            HINT = 'Write for example SELECT * FROM headrace.view_diff(''v'', since_at => now() - interval ''1 hour'').';
    END IF;
    IF until_at IS NOT NULL THEN
        PERFORM headrace.await_history(view, NULL, until_at);
    END IF;
    RETURN QUERY SELECT c.change, c.times, c.before, c.after
      FROM headrace.net_changes(view, since, until, since_at, until_at) c;
END
$$;
CREATE FUNCTION headrace.view_message(view_id bigint) RETURNS text
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    AS $$
    SELECT nullif(concat_ws(' ', nullif(concat_ws('; ',
               nullif(concat_ws(' at ', v.message, v.culprit), ''), v.detail, v.hint), ''), v.tried), '')
      FROM headrace.views v WHERE v.id = view_id
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
    SET jit TO 'off'
    SET row_security TO 'on'
    AS $$
DECLARE
    kept headrace.histories;
BEGIN
    kept := headrace.history_of(view);
    RETURN (SELECT p.txid + kept.shift FROM headrace.progress p WHERE p.view_id = kept.view_id);
END
$$;
CREATE FUNCTION headrace.webhooks(OUT assertion text, OUT url text, OUT secret text, OUT pending bigint, OUT delivered bigint, OUT failed bigint, OUT last_error text) RETURNS SETOF record
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET row_security TO 'on'
    AS $$
    SELECT format('%I.%I', v.schema_name, v.view_name), t.url, t.secret, d.pending, d.delivered, d.failed, d.error
      FROM headrace.webhook_targets t JOIN headrace.assertion_states a ON a.id = t.assertion_id  -- row security decides
      JOIN headrace.views v ON v.id = a.view_id
     CROSS JOIN LATERAL (
           SELECT count(*) FILTER (WHERE w.status = 'pending') AS pending,
                  count(*) FILTER (WHERE w.status = 'delivered') AS delivered,
                  count(*) FILTER (WHERE w.status = 'failed') AS failed,
                  (array_agg(w.error ORDER BY w.created_at DESC) FILTER (WHERE w.error IS NOT NULL))[1] AS error
             FROM headrace.webhook_deliveries w WHERE w.assertion_id = a.id) d
     ORDER BY 1
$$;
CREATE FUNCTION headrace.why(name text, key jsonb, most bigint DEFAULT 100, OUT txid bigint, OUT source text, OUT contents jsonb, OUT rows bigint, OUT note text) RETURNS SETOF record
    LANGUAGE plpgsql STABLE
    AS $_$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '0A000',
        MESSAGE = 'why is answered only on the port of headrace, as a statement of its own',
        DETAIL = 'Here it is part of a larger query, inside of a transaction, or on a direct connection: a function cannot ask the engine.',
        HINT = pg_catalog.format(
            'On the port of headrace, with autocommit on, write exactly SELECT * FROM headrace.why(%1$L, …);'
            ' on any connection, CALL headrace.show_why(%1$L, …) answers the rows as one JSON array.', name);
END
$_$;
CREATE FUNCTION headrace.why_not(name text, key jsonb, OUT txid bigint, OUT node text, OUT operator text, OUT rows bigint, OUT reason text) RETURNS SETOF record
    LANGUAGE plpgsql STABLE
    AS $_$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '0A000',
        MESSAGE = 'why_not is answered only on the port of headrace, as a statement of its own',
        DETAIL = 'Here it is part of a larger query, inside of a transaction, or on a direct connection: a function cannot ask the engine.',
        HINT = pg_catalog.format(
            'On the port of headrace, with autocommit on, write exactly SELECT * FROM headrace.why_not(%1$L, …);'
            ' on any connection, CALL headrace.show_why_not(%1$L, …) answers the rows as one JSON array.', name);
END
$_$;
CREATE FUNCTION headrace.worker_position(OUT heard boolean, OUT lsn pg_lsn, OUT lag_ms bigint, OUT batch_s double precision, OUT busy_ms bigint) RETURNS SETOF record
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
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
    SET jit TO 'off'
    AS $$
    SELECT EXISTS (SELECT FROM headrace.worker_position() p WHERE p.heard)
$$;
CREATE FUNCTION headrace.workers(OUT worker text, OUT state text, OUT pid bigint, OUT views bigint, OUT memory_bytes bigint, OUT since text, OUT address text, OUT cpu_s double precision, OUT moved text) RETURNS SETOF record
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    AS $$
    SELECT * FROM jsonb_to_recordset(headrace.ask_engine('workers', 'show_workers'))
      AS a(
          worker text, state text, pid bigint, views bigint, memory_bytes bigint, since text, address text,
          cpu_s double precision, moved text)
$$;
CREATE TABLE headrace.assertion_states (
    id bigint NOT NULL,
    view_id bigint NOT NULL,
    on_violation text NOT NULL,
    sample integer NOT NULL,
    grace interval NOT NULL,
    txid bigint DEFAULT '-1'::integer NOT NULL,
    count bigint DEFAULT 0 NOT NULL,
    lsn pg_lsn,
    since timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    pending jsonb,
    violation_id bigint,
    unsent text[] DEFAULT '{}'::text[] NOT NULL,
    fill_txid bigint NOT NULL,
    fill_rows bigint NOT NULL,
    fill_sample text[] NOT NULL,
    fill_lsn pg_lsn NOT NULL,
    fill_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT assertion_states_on_violation_check CHECK ((on_violation = ANY (ARRAY['notify'::text, 'webhook'::text, 'both'::text])))
);
ALTER TABLE headrace.assertion_states ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME headrace.assertion_states_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
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
    queued boolean DEFAULT false NOT NULL,
    subject text,
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
    CONSTRAINT held_kind_check CHECK ((kind = ANY (ARRAY['work'::text, 'source'::text, 'behind'::text, 'cursor'::text, 'population'::text])))
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
    data text[] NOT NULL,
    net bigint,
    first_at timestamp with time zone,
    transactions integer,
    xids bigint[]
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
    last_commit bytea,
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
CREATE TABLE headrace.violations (
    id bigint NOT NULL,
    assertion_id bigint NOT NULL,
    assertion text NOT NULL,
    violated_at timestamp with time zone NOT NULL,
    rows bigint NOT NULL,
    sample jsonb NOT NULL,
    xids bigint[] NOT NULL,
    transactions integer NOT NULL,
    first_at timestamp with time zone NOT NULL,
    lsn pg_lsn NOT NULL,
    txid bigint NOT NULL,
    recorded_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    resolved_at timestamp with time zone,
    resolved_xids bigint[],
    resolved_transactions integer,
    resolved_first_at timestamp with time zone,
    resolved_lsn pg_lsn,
    resolved_txid bigint,
    webhook text
);
ALTER TABLE headrace.violations ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME headrace.violations_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE headrace.webhook_deliveries (
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    assertion_id bigint NOT NULL,
    violation_id bigint NOT NULL,
    event text NOT NULL,
    status text DEFAULT 'pending'::text NOT NULL,
    tries integer DEFAULT 0 NOT NULL,
    due_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    error text,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT webhook_deliveries_event_check CHECK ((event = ANY (ARRAY['violated'::text, 'resolved'::text]))),
    CONSTRAINT webhook_deliveries_status_check CHECK ((status = ANY (ARRAY['pending'::text, 'delivered'::text, 'failed'::text])))
);
CREATE TABLE headrace.webhook_targets (
    assertion_id bigint NOT NULL,
    url text NOT NULL,
    secret text NOT NULL
);
ALTER TABLE ONLY headrace.histories ALTER COLUMN id SET DEFAULT nextval('headrace.histories_id_seq'::regclass);
ALTER TABLE ONLY headrace.views ALTER COLUMN id SET DEFAULT nextval('headrace.views_id_seq'::regclass);
INSERT INTO headrace.facts VALUES ('workers', 'main up', true, NULL, '2026-11-25 13:04:41.292635+00');
INSERT INTO headrace.facts VALUES ('memory', 'about 0 % of 1024 MB', true, NULL, '2026-11-25 13:04:41.292734+00');
INSERT INTO headrace.histories VALUES (1, 1, 16728, '01:00:00', 0, 1, '0/1', '2026-01-01 00:00:00+00');
INSERT INTO headrace.history VALUES (1, 2, 0, '0/2', '2026-01-02 00:00:00+00', 1, '{1}', '{(1)}', NULL, NULL, 1, '{700}');
INSERT INTO headrace.meta VALUES ('slot_name', 'headrace');
INSERT INTO headrace.meta VALUES ('release', '0.2.0');
INSERT INTO headrace.meta VALUES ('wal_budget_bytes', '10737418240');
INSERT INTO headrace.meta VALUES ('wal_retention', 'source');
INSERT INTO headrace.meta VALUES ('epoch', '1');
INSERT INTO headrace.meta VALUES ('worker', '26136 1795611881.162162');
INSERT INTO headrace.meta VALUES ('commander', '26157 1795611881.255425');
INSERT INTO headrace.meta VALUES ('version', '5');
INSERT INTO headrace.meta VALUES ('installed', '33215469c92355298f7fe3da720c6af655d41a7b007c22d7d9cb7e11a352c509 ad022e77c27697cb0bb9ea1a2c1a25f8');
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
SELECT pg_catalog.setval('headrace.assertion_states_id_seq', 1, false);
SELECT pg_catalog.setval('headrace.commands_id_seq', 1, false);
SELECT pg_catalog.setval('headrace.feeds_id_seq', 1, false);
SELECT pg_catalog.setval('headrace.histories_id_seq', 1, true);
SELECT pg_catalog.setval('headrace.views_id_seq', 2, true);
SELECT pg_catalog.setval('headrace.violations_id_seq', 1, false);
ALTER TABLE ONLY headrace.assertion_states
    ADD CONSTRAINT assertion_states_pkey PRIMARY KEY (id);
ALTER TABLE ONLY headrace.assertion_states
    ADD CONSTRAINT assertion_states_view_id_key UNIQUE (view_id);
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
ALTER TABLE ONLY headrace.violations
    ADD CONSTRAINT violations_pkey PRIMARY KEY (id);
ALTER TABLE ONLY headrace.webhook_deliveries
    ADD CONSTRAINT webhook_deliveries_pkey PRIMARY KEY (id);
ALTER TABLE ONLY headrace.webhook_targets
    ADD CONSTRAINT webhook_targets_pkey PRIMARY KEY (assertion_id);
CREATE INDEX assertion_states_unsent ON headrace.assertion_states USING btree (id) WHERE (unsent <> '{}'::text[]);
CREATE INDEX commands_unfinished ON headrace.commands USING btree (id) WHERE (status = ANY (ARRAY['pending'::text, 'running'::text]));
CREATE INDEX points_view_id ON headrace.points USING btree (view_id);
CREATE INDEX view_tables_table_oid ON headrace.view_tables USING btree (table_oid);
CREATE INDEX view_uses_result_oid ON headrace.view_uses USING btree (result_oid);
CREATE INDEX views_stopped ON headrace.views USING btree (id) WHERE (status = 'error'::text);
CREATE INDEX violations_assertion_id ON headrace.violations USING btree (assertion_id, id);
CREATE INDEX webhook_deliveries_due_at ON headrace.webhook_deliveries USING btree (due_at) WHERE (status = 'pending'::text);
CREATE INDEX webhook_deliveries_open ON headrace.webhook_deliveries USING btree (assertion_id) WHERE (status <> 'delivered'::text);
CREATE INDEX webhook_deliveries_violation_id ON headrace.webhook_deliveries USING btree (violation_id);
CREATE TRIGGER stamp BEFORE INSERT ON headrace.commands FOR EACH ROW EXECUTE FUNCTION headrace.stamp_command();
ALTER TABLE headrace.commands ENABLE ALWAYS TRIGGER stamp;
ALTER TABLE ONLY headrace.assertion_states
    ADD CONSTRAINT assertion_states_view_id_fkey FOREIGN KEY (view_id) REFERENCES headrace.views(id) ON UPDATE CASCADE ON DELETE CASCADE;
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
ALTER TABLE ONLY headrace.violations
    ADD CONSTRAINT violations_assertion_id_fkey FOREIGN KEY (assertion_id) REFERENCES headrace.assertion_states(id) ON DELETE CASCADE;
ALTER TABLE ONLY headrace.webhook_deliveries
    ADD CONSTRAINT webhook_deliveries_assertion_id_fkey FOREIGN KEY (assertion_id) REFERENCES headrace.assertion_states(id) ON DELETE CASCADE;
ALTER TABLE ONLY headrace.webhook_deliveries
    ADD CONSTRAINT webhook_deliveries_violation_id_fkey FOREIGN KEY (violation_id) REFERENCES headrace.violations(id) ON DELETE CASCADE;
ALTER TABLE ONLY headrace.webhook_targets
    ADD CONSTRAINT webhook_targets_assertion_id_fkey FOREIGN KEY (assertion_id) REFERENCES headrace.assertion_states(id) ON DELETE CASCADE;
ALTER TABLE headrace.assertion_states ENABLE ROW LEVEL SECURITY;
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
CREATE POLICY own ON headrace.assertion_states FOR SELECT USING ((view_id IN ( SELECT v.id
   FROM headrace.views v)));
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
CREATE POLICY own ON headrace.webhook_deliveries FOR SELECT USING ((assertion_id IN ( SELECT a.id
   FROM (headrace.assertion_states a
     JOIN headrace.views v ON ((v.id = a.view_id))))));
CREATE POLICY own ON headrace.webhook_targets FOR SELECT USING ((assertion_id IN ( SELECT a.id
   FROM (headrace.assertion_states a
     JOIN headrace.views v ON ((v.id = a.view_id))))));
ALTER TABLE headrace.points ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.progress ENABLE ROW LEVEL SECURITY;
CREATE POLICY public ON headrace.meta FOR SELECT USING (true);
CREATE POLICY readers ON headrace.assertion_states FOR SELECT USING ((view_id IN ( SELECT h.view_id
   FROM headrace.histories h)));
CREATE POLICY readers ON headrace.covered FOR SELECT USING ((view_id IN ( SELECT h.view_id
   FROM headrace.histories h)));
CREATE POLICY readers ON headrace.histories FOR SELECT USING ((has_table_privilege(result_oid, 'SELECT'::text) AND (NOT row_security_active(result_oid))));
CREATE POLICY readers ON headrace.history FOR SELECT USING ((history_id IN ( SELECT h.id
   FROM headrace.histories h)));
CREATE POLICY readers ON headrace.progress FOR SELECT USING ((view_id IN ( SELECT h.view_id
   FROM headrace.histories h)));
CREATE POLICY readers ON headrace.violations FOR SELECT USING ((assertion_id IN ( SELECT a.id
   FROM (headrace.assertion_states a
     JOIN headrace.histories h ON ((h.view_id = a.view_id))))));
ALTER TABLE headrace.samples ENABLE ROW LEVEL SECURITY;
CREATE POLICY send ON headrace.commands FOR INSERT WITH CHECK ((caller = ((quote_ident((CURRENT_USER)::text))::regrole)::oid));
ALTER TABLE headrace.stand_ins ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.view_tables ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.view_uses ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.views ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.violations ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.webhook_deliveries ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.webhook_targets ENABLE ROW LEVEL SECURITY;
GRANT USAGE ON SCHEMA headrace TO PUBLIC;
GRANT SELECT ON TABLE headrace.feeds TO PUBLIC;
GRANT INSERT(name),UPDATE(name) ON TABLE headrace.feeds TO PUBLIC;
GRANT INSERT(history_id) ON TABLE headrace.feeds TO PUBLIC;
GRANT INSERT(txid),UPDATE(txid) ON TABLE headrace.feeds TO PUBLIC;
GRANT SELECT ON TABLE headrace.histories TO PUBLIC;
GRANT SELECT(id) ON TABLE headrace.assertion_states TO PUBLIC;
GRANT SELECT(view_id) ON TABLE headrace.assertion_states TO PUBLIC;
GRANT SELECT(on_violation) ON TABLE headrace.assertion_states TO PUBLIC;
GRANT SELECT(sample) ON TABLE headrace.assertion_states TO PUBLIC;
GRANT SELECT(grace) ON TABLE headrace.assertion_states TO PUBLIC;
GRANT SELECT(txid) ON TABLE headrace.assertion_states TO PUBLIC;
GRANT SELECT(count) ON TABLE headrace.assertion_states TO PUBLIC;
GRANT SELECT(lsn) ON TABLE headrace.assertion_states TO PUBLIC;
GRANT SELECT(since) ON TABLE headrace.assertion_states TO PUBLIC;
GRANT SELECT(violation_id) ON TABLE headrace.assertion_states TO PUBLIC;
GRANT SELECT(fill_txid) ON TABLE headrace.assertion_states TO PUBLIC;
GRANT SELECT(fill_rows) ON TABLE headrace.assertion_states TO PUBLIC;
GRANT SELECT(fill_at) ON TABLE headrace.assertion_states TO PUBLIC;
GRANT SELECT ON TABLE headrace.commands TO PUBLIC;
GRANT INSERT(procedure) ON TABLE headrace.commands TO PUBLIC;
GRANT INSERT(arguments) ON TABLE headrace.commands TO PUBLIC;
GRANT INSERT(settings) ON TABLE headrace.commands TO PUBLIC;
GRANT INSERT(queued) ON TABLE headrace.commands TO PUBLIC;
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
GRANT SELECT ON TABLE headrace.violations TO PUBLIC;
GRANT SELECT ON TABLE headrace.webhook_deliveries TO PUBLIC;
GRANT SELECT ON TABLE headrace.webhook_targets TO PUBLIC;
