-- Base tables of each view.
CREATE TABLE IF NOT EXISTS headrace.view_tables (
    view_id     bigint NOT NULL REFERENCES headrace.views ON DELETE CASCADE,
    table_oid   oid NOT NULL,
    schema_name name NOT NULL,
    table_name  name NOT NULL,
    PRIMARY KEY (view_id, table_oid)
);
CREATE INDEX IF NOT EXISTS view_tables_table_oid ON headrace.view_tables (table_oid);
