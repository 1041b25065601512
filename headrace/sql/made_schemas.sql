-- Schemas that create_view has created.  Each is dropped with its last view, unless it holds other objects or has
-- another owner by then.
CREATE TABLE IF NOT EXISTS headrace.made_schemas (
    schema_oid oid PRIMARY KEY,
    owner      oid NOT NULL
);
