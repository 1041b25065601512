-- The webhooks of assertions whose owner the caller acts for: address, secret that signs the requests, and how many
-- requests are pending, delivered and failed.  last_error: why the last failed attempt has failed.
DROP FUNCTION IF EXISTS headrace.webhooks();
CREATE FUNCTION headrace.webhooks(
    OUT assertion text, OUT url text, OUT secret text, OUT pending bigint, OUT delivered bigint, OUT failed bigint,
    OUT last_error text)
RETURNS SETOF record
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET jit = off SET row_security = on
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
