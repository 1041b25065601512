-- Everything of Headrace in a user's database lives in this schema.
CREATE SCHEMA IF NOT EXISTS headrace;
COMMENT ON SCHEMA headrace IS 'Headrace: incrementally maintained views. Remove with `headrace uninstall`.';
