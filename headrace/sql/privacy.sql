-- Row security of the catalog: the rows of a view are visible to its owner and the members of that role.  Only the
-- engine's role, which owns the tables, may write, because no policy allows it.  Feeds are also written by their
-- owners.
ALTER TABLE headrace.views ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.progress ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.view_tables ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.view_uses ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.made_schemas ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.meta ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS own ON headrace.views;
CREATE POLICY own ON headrace.views FOR SELECT USING (
    -- The owner's role may be dropped.
    owner IN (SELECT r.oid FROM pg_catalog.pg_roles r WHERE pg_catalog.pg_has_role(r.oid, 'USAGE')));
DROP POLICY IF EXISTS own ON headrace.progress;
CREATE POLICY own ON headrace.progress FOR SELECT
    USING (view_id IN (SELECT v.id FROM headrace.views v));
DROP POLICY IF EXISTS own ON headrace.view_tables;
CREATE POLICY own ON headrace.view_tables FOR SELECT
    USING (view_id IN (SELECT v.id FROM headrace.views v));
DROP POLICY IF EXISTS own ON headrace.view_uses;
CREATE POLICY own ON headrace.view_uses FOR SELECT
    USING (view_id IN (SELECT v.id FROM headrace.views v));
ALTER TABLE headrace.samples ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS own ON headrace.samples;
CREATE POLICY own ON headrace.samples FOR SELECT
    USING (view_id IN (SELECT v.id FROM headrace.views v));
ALTER TABLE headrace.held ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS own ON headrace.held;
CREATE POLICY own ON headrace.held FOR SELECT
    USING (view_id IN (SELECT v.id FROM headrace.views v));
-- Facts about the engine: for members of its role.
ALTER TABLE headrace.facts ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS own ON headrace.facts;
CREATE POLICY own ON headrace.facts FOR SELECT USING (pg_catalog.pg_has_role(
    (SELECT c.relowner FROM pg_catalog.pg_class c WHERE c.oid = 'headrace.facts'::pg_catalog.regclass), 'USAGE'));
ALTER TABLE headrace.events ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS own ON headrace.events;
CREATE POLICY own ON headrace.events FOR SELECT USING (
    owner IN (SELECT r.oid FROM pg_catalog.pg_roles r WHERE pg_catalog.pg_has_role(r.oid, 'USAGE'))
    OR pg_catalog.pg_has_role(
        (SELECT c.relowner FROM pg_catalog.pg_class c WHERE c.oid = 'headrace.events'::pg_catalog.regclass), 'USAGE'));
ALTER TABLE headrace.points ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS own ON headrace.points;
CREATE POLICY own ON headrace.points FOR SELECT
    USING (view_id IN (SELECT v.id FROM headrace.views v));
-- An assertion is visible to its owner, and to roles that may read all of its table, who may also see its violations.
ALTER TABLE headrace.assertion_states ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.violations ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.webhook_targets ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.webhook_deliveries ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS own ON headrace.assertion_states;
CREATE POLICY own ON headrace.assertion_states FOR SELECT
    USING (view_id IN (SELECT v.id FROM headrace.views v));
DROP POLICY IF EXISTS readers ON headrace.assertion_states;
CREATE POLICY readers ON headrace.assertion_states FOR SELECT
    USING (view_id IN (SELECT h.view_id FROM headrace.histories h));
DROP POLICY IF EXISTS readers ON headrace.violations;
CREATE POLICY readers ON headrace.violations FOR SELECT USING (assertion_id IN (
    SELECT a.id FROM headrace.assertion_states a JOIN headrace.histories h ON h.view_id = a.view_id));
-- Addresses and secrets are the owner's only.
DROP POLICY IF EXISTS own ON headrace.webhook_targets;
CREATE POLICY own ON headrace.webhook_targets FOR SELECT USING (assertion_id IN (
    SELECT a.id FROM headrace.assertion_states a JOIN headrace.views v ON v.id = a.view_id));
DROP POLICY IF EXISTS own ON headrace.webhook_deliveries;
CREATE POLICY own ON headrace.webhook_deliveries FOR SELECT USING (assertion_id IN (
    SELECT a.id FROM headrace.assertion_states a JOIN headrace.views v ON v.id = a.view_id));
-- The engine shows workers to members of its role.
ALTER TABLE headrace.nodes ENABLE ROW LEVEL SECURITY;
-- So with other databases; their connection strings are shown to no role.
ALTER TABLE headrace.origins ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.stand_ins ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.carrier ENABLE ROW LEVEL SECURITY;
-- Version, system, names of slot and backends.
DROP POLICY IF EXISTS public ON headrace.meta;
CREATE POLICY public ON headrace.meta FOR SELECT USING (true);
-- Roles that may read all of the table may read its history and its progress.
ALTER TABLE headrace.histories ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.history ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.feeds ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.covered ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS readers ON headrace.histories;
CREATE POLICY readers ON headrace.histories FOR SELECT USING (
    pg_catalog.has_table_privilege(result_oid, 'SELECT') AND NOT pg_catalog.row_security_active(result_oid));
DROP POLICY IF EXISTS readers ON headrace.history;
CREATE POLICY readers ON headrace.history FOR SELECT
    USING (history_id IN (SELECT h.id FROM headrace.histories h));
DROP POLICY IF EXISTS readers ON headrace.progress;
CREATE POLICY readers ON headrace.progress FOR SELECT
    USING (view_id IN (SELECT h.view_id FROM headrace.histories h));
DROP POLICY IF EXISTS readers ON headrace.covered;
CREATE POLICY readers ON headrace.covered FOR SELECT
    USING (view_id IN (SELECT h.view_id FROM headrace.histories h));
-- A feed belongs to the role that created it, and is visible to the members of that role.
DROP POLICY IF EXISTS own ON headrace.feeds;
CREATE POLICY own ON headrace.feeds FOR SELECT USING (
    owner IN (SELECT r.oid FROM pg_catalog.pg_roles r WHERE pg_catalog.pg_has_role(r.oid, 'USAGE')));
DROP POLICY IF EXISTS moved ON headrace.feeds;
CREATE POLICY moved ON headrace.feeds FOR UPDATE USING (
    owner IN (SELECT r.oid FROM pg_catalog.pg_roles r WHERE pg_catalog.pg_has_role(r.oid, 'USAGE')));
DROP POLICY IF EXISTS made ON headrace.feeds;
CREATE POLICY made ON headrace.feeds FOR INSERT WITH CHECK (
    owner IN (SELECT r.oid FROM pg_catalog.pg_roles r WHERE pg_catalog.pg_has_role(r.oid, 'USAGE'))
    AND history_id IN (SELECT h.id FROM headrace.histories h)
    AND headrace.has_room_for_feed(owner));
