-- The catalog is public like pg_views; commands hold the texts of others and are not.
GRANT USAGE ON SCHEMA headrace TO PUBLIC;
REVOKE CREATE ON SCHEMA headrace FROM PUBLIC;
REVOKE ALL ON headrace.meta, headrace.views, headrace.progress, headrace.view_tables, headrace.view_uses, headrace.commands FROM PUBLIC;
GRANT SELECT ON headrace.meta, headrace.views, headrace.progress, headrace.view_tables, headrace.view_uses TO PUBLIC;
GRANT EXECUTE ON ALL ROUTINES IN SCHEMA headrace TO PUBLIC;
