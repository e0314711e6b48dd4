-- Counting all documents reads the table, or an index if VACUUM has marked most pages as all-visible. The count is that of the
-- statement's snapshot in both cases.
SELECT docshard.drop_database('counting') IS NOT NULL AS dropped;
SELECT docshard.insert_many('counting.c', array_agg(jsonb_build_object('_id', i, 'n', i % 7))) IS NOT NULL AS inserted
  FROM generate_series(1, 3000) AS i;
SELECT docshard.count_documents('counting.c');
SELECT "table" AS documents FROM docshard.collections WHERE namespace = 'counting.c' \gset
VACUUM (ANALYZE) :documents;
SELECT docshard.count_documents('counting.c');
-- Changes after the visibility map was set.
SELECT docshard.delete_many('counting.c', '{"n": 0}') ->> 'deletedCount' AS deleted;
SELECT docshard.count_documents('counting.c');
SELECT docshard.update_many('counting.c', '{"n": 1}', '{"$set": {"m": 1}}') ->> 'modifiedCount' AS modified;
SELECT docshard.count_documents('counting.c'), docshard.count_documents('counting.c', '{"_id": {"$gte": 0}}');
-- A transaction sees its own changes, until they are rolled back.
BEGIN;
SELECT docshard.insert_one('counting.c', '{"_id": 0}') IS NOT NULL AS inserted;
SELECT docshard.count_documents('counting.c');
SAVEPOINT before;
SELECT docshard.delete_many('counting.c', '{"n": 2}') ->> 'deletedCount' AS deleted;
SELECT docshard.count_documents('counting.c');
ROLLBACK TO before;
SELECT docshard.count_documents('counting.c');
ROLLBACK;
SELECT docshard.count_documents('counting.c');
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT docshard.count_documents('counting.c');
COMMIT;
-- Row-level security hides rows from a count as from a find.
CREATE ROLE regress_counter;
SELECT docshard.grant_access('regress_counter') IS NOT NULL AS granted;
-- An administrator who means it can switch the protection of collections' tables off.
ALTER EVENT TRIGGER docshard_check_changes DISABLE;
ALTER TABLE :documents ENABLE ROW LEVEL SECURITY;
ALTER EVENT TRIGGER docshard_check_changes ENABLE ALWAYS;
CREATE POLICY threes ON :documents FOR SELECT TO regress_counter USING ((doc ->> 'n')::int = 3);
SET ROLE regress_counter;
SELECT docshard.count_documents('counting.c'), (SELECT count(*) FROM docshard.find('counting.c')) AS found;
SELECT docshard.find_one('counting.c', '{"_id": 3}') IS NOT NULL AS sees, docshard.find_one('counting.c', '{"_id": 4}') IS NULL AS does_not;
RESET ROLE;
SELECT docshard.count_documents('counting.c');
DROP POLICY threes ON :documents;
ALTER TABLE :documents DISABLE ROW LEVEL SECURITY;
-- Missing privileges are reported by a find of one key, and by an update that matches nothing. A read-only transaction is
-- reported, too.
\set VERBOSITY sqlstate
REVOKE UPDATE ON :documents FROM regress_counter;
SET ROLE regress_counter;
SELECT docshard.update_many('counting.c', '{"n": -1}', '{"$set": {"x": 1}}');
SELECT docshard.find_one('counting.c', '{"_id": 4}') IS NOT NULL AS sees;
RESET ROLE;
REVOKE SELECT ON :documents FROM regress_counter;
SET ROLE regress_counter;
SELECT docshard.find_one('counting.c', '{"_id": 4}');
RESET ROLE;
BEGIN READ ONLY;
SELECT docshard.update_many('counting.c', '{"n": -1}', '{"$set": {"x": 1}}');
ROLLBACK;
\set VERBOSITY default
-- With a limit, and of an empty result.
SELECT docshard.count_documents('counting.c', '{}', '{"skip": 2000, "limit": 1000}');
SELECT docshard.delete_many('counting.c', '{}') ->> 'deletedCount' AS deleted;
SELECT docshard.count_documents('counting.c'), docshard.count_documents('counting.nothing');
SELECT docshard.drop_database('counting') IS NOT NULL AS dropped;
DROP OWNED BY regress_counter;
DROP ROLE regress_counter;
