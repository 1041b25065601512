-- Schema of all objects of Headrace in a user's database, except result tables.
CREATE SCHEMA IF NOT EXISTS headrace;
COMMENT ON SCHEMA headrace IS 'Headrace: incrementally maintained views. Remove with `headrace uninstall`.';
