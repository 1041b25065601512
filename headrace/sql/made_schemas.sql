-- Schemas that create_view has made; they go with the last view in them, unless something else is
-- in them by then, or somebody else owns them.
CREATE TABLE IF NOT EXISTS headrace.made_schemas (
    schema_oid oid PRIMARY KEY,
    owner      oid NOT NULL
);
