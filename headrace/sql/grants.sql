-- The catalog is public like pg_views; of the commands each role sees its own (commands.sql).
GRANT USAGE ON SCHEMA headrace TO PUBLIC;
REVOKE CREATE ON SCHEMA headrace FROM PUBLIC;
REVOKE ALL ON headrace.meta, headrace.views, headrace.progress, headrace.view_tables, headrace.view_uses, headrace.commands FROM PUBLIC;
GRANT SELECT ON headrace.meta, headrace.views, headrace.progress, headrace.view_tables, headrace.view_uses TO PUBLIC;
GRANT SELECT, INSERT (procedure, arguments, settings) ON headrace.commands TO PUBLIC;
GRANT EXECUTE ON ALL ROUTINES IN SCHEMA headrace TO PUBLIC;
