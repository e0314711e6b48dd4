-- Validators of collections: what they refuse, levels and actions, and what bypasses them.

\pset format unaligned
\pset tuples_only on

SELECT docshard.enable_sharding('valid', 'local');
SELECT docshard.create_collection('valid.people', '{"validator": {"$jsonSchema": {"required": ["name"],
  "properties": {"age": {"bsonType": "int", "minimum": 0, "description": "years"}}}}}');

-- Inserts, of one and of several, and upserts.
SELECT docshard.insert_one('valid.people', '{"_id": 1, "name": "ann", "age": 30}') IS NOT NULL;
SELECT docshard.insert_one('valid.people', '{"_id": 2, "age": -1}');
SELECT docshard.insert_many('valid.people', ARRAY['{"_id": 2, "name": "bob"}', '{"_id": 3}']::jsonb[]);
SELECT docshard.insert_many('valid.people', ARRAY['{"_id": 2, "name": "bob"}', '{"_id": 3}', '{"_id": 4, "name": "cid"}']::jsonb[], '{"ordered": false}');
SELECT docshard.insert_select('valid.people', 'SELECT ''{"_id": 5}''::jsonb');
SELECT docshard.update_one('valid.people', '{"_id": 6}', '{"$set": {"age": 1}}', '{"upsert": true}');

-- The names that PostgreSQL's errors of constraints have.
DO $$
DECLARE
    state text; schema text; relation text; name text;
BEGIN
    PERFORM docshard.insert_one('valid.people', '{"_id": 2}');
EXCEPTION WHEN check_violation THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, schema = SCHEMA_NAME, relation = TABLE_NAME, name = CONSTRAINT_NAME;
    RAISE NOTICE '% % % %', state, schema, relation, name;
END $$;

-- Updates of all kinds.
SELECT docshard.update_one('valid.people', '{"_id": 1}', '{"$unset": {"name": 1}}');
SELECT docshard.update_many('valid.people', '{}', '{"$set": {"age": "old"}}');
SELECT docshard.replace_one('valid.people', '{"_id": 1}', '{"age": 1}');
SELECT docshard.find_one_and_update('valid.people', '{"_id": 1}', '[{"$set": {"age": -5}}]');
SELECT docshard.bulk_write('valid.people', '[{"insertOne": {"document": {"_id": 7}}}, {"updateOne": {"filter": {"_id": 1}, "update": {"$inc": {"age": 1}}}}]', '{"ordered": false}');
-- What changes nothing is not checked, and what is deleted neither.
SELECT docshard.update_one('valid.people', '{"_id": 1}', '{"$set": {"name": "ann"}}');
SELECT docshard.delete_one('valid.people', '{"_id": 4}');
SELECT * FROM docshard.find('valid.people', '{}', '{"sort": {"_id": 1}}');

-- Stages that write.
SELECT docshard.insert_many('valid.source', ARRAY['{"_id": 2}', '{"_id": 9}']::jsonb[]) IS NOT NULL;
SELECT docshard.aggregate('valid.source', '[{"$merge": {"into": "people"}}]');
SELECT docshard.aggregate('valid.source', '[{"$out": "people"}]');
SELECT docshard.aggregate('valid.source', '[{"$merge": {"into": "people"}}]', '{"bypassDocumentValidation": true}');
SELECT docshard.count_documents('valid.people', '{"name": {"$exists": false}}');

-- By the commands, with MongoDB's errInfo.
SELECT docshard.run_command('valid', '{"insert": "people", "documents": [{"_id": 10}, {"_id": 11, "name": "x"}], "ordered": false}');
SELECT docshard.run_command('valid', '{"findAndModify": "people", "query": {"_id": 1}, "update": {"$set": {"name": 1, "age": 1.5}}}');
SELECT docshard.run_command('valid', '{"update": "people", "updates": [{"q": {"_id": 1}, "u": {"$set": {"age": -2}}}]}');
SELECT docshard.run_command('valid', '{"update": "people", "updates": [{"q": {"_id": 1}, "u": {"$set": {"age": -2}}}], "bypassDocumentValidation": true}');
SELECT docshard.run_command('valid', '{"insert": "people", "documents": [{"_id": 12}], "bypassDocumentValidation": true}');

-- Direct statements on the table.
SELECT "table" AS people FROM docshard.collections WHERE namespace = 'valid.people' \gset
INSERT INTO :people SELECT '', 'x', '{"_id": 13}';
UPDATE :people SET doc = doc - 'name' WHERE doc @> '{"_id": 1}';
UPDATE :people SET skey = skey;

-- The level moderate lets invalid documents stay so.
SELECT docshard.modify_collection('valid.people', '{"validationLevel": "moderate"}');
SELECT docshard.update_one('valid.people', '{"_id": 12}', '{"$set": {"a": 1}}');
SELECT docshard.update_many('valid.people', '{"name": {"$exists": false}}', '{"$set": {"a": 2}}');
UPDATE :people SET doc = doc || '{"a": 3}' WHERE doc @> '{"_id": 12}';
SELECT docshard.update_one('valid.people', '{"_id": 11}', '{"$unset": {"name": 1}}');
SELECT docshard.insert_one('valid.people', '{"_id": 14}');
-- The action warn writes to the log.
SELECT docshard.modify_collection('valid.people', '{"validationLevel": "strict", "validationAction": "warn"}');
SELECT docshard.insert_one('valid.people', '{"_id": 14}');
SELECT docshard.run_command('valid', '{"collMod": "people", "validationAction": "errorAndLog"}');
SELECT docshard.insert_one('valid.people', '{"_id": 15}');
SELECT docshard.modify_collection('valid.people', '{"validationLevel": "off"}');
SELECT docshard.insert_one('valid.people', '{"_id": 15}');
SELECT docshard.run_command('valid', '{"listCollections": 1, "filter": {"name": "people"}}')->'cursor'->'firstBatch'->0->'options';
SELECT validation FROM docshard.collections WHERE namespace = 'valid.people';
-- Another validator, which is in the transaction's own writes, and goes with it.
BEGIN;
SELECT docshard.insert_one('valid.people', '{"_id": 16}');
SELECT docshard.modify_collection('valid.people', '{"validator": {"a": {"$gt": 0}}, "validationLevel": "strict", "validationAction": "error"}');
SAVEPOINT s;
SELECT docshard.insert_one('valid.people', '{"_id": 17}');
ROLLBACK TO s;
SELECT docshard.insert_one('valid.people', '{"_id": 17, "a": 1}');
ROLLBACK;
SELECT docshard.insert_one('valid.people', '{"_id": 16}');

-- It stays when the collection is renamed, and when an empty one is sharded. An empty validator is none.
SELECT docshard.create_collection('valid.made', '{"validator": {"a": {"$type": "string"}}}');
SELECT docshard.shard_collection('valid.made', '{"_id": "hashed"}');
SELECT docshard.rename_collection('valid.made', 'valid.kept');
SELECT docshard.insert_one('valid.kept', '{"_id": 1, "a": 1}');
SELECT docshard.insert_one('valid.kept', '{"_id": 1, "a": "x"}');
-- A document that another shard key takes elsewhere.
SELECT docshard.create_collection('valid.keyed', '{"validator": {"k": {"$lt": 100}}}');
SELECT docshard.shard_collection('valid.keyed', '{"k": 1}');
SELECT docshard.insert_one('valid.keyed', '{"_id": 1, "k": 1}');
SELECT docshard.update_one('valid.keyed', '{"_id": 1, "k": 1}', '{"$set": {"k": 200}}');
SELECT docshard.modify_collection('valid.kept', '{"validator": {}}');
SELECT docshard.insert_one('valid.kept', '{"_id": 2, "a": 1}');
SELECT validation FROM docshard.collections WHERE namespace = 'valid.kept';

-- Strings compare by the collection's collation.
SELECT docshard.create_collection('valid.collated', '{"validator": {"a": "x"}, "collation": {"locale": "en", "strength": 2}}');
SELECT docshard.insert_one('valid.collated', '{"_id": 1, "a": "X"}');
SELECT docshard.insert_one('valid.collated', '{"_id": 2, "a": "y"}');

-- What cannot be a validator.
SELECT docshard.create_collection('valid.bad', '{"validator": {"a": {"$foo": 1}}}');
SELECT docshard.create_collection('valid.bad', '{"validator": {"$expr": {"$eq": ["$$USER_ROLES", []]}}}');
SELECT docshard.create_collection('admin.bad', '{"validator": {"a": 1}}');
SELECT docshard.create_collection('valid.bad', '{"validator": {"a": 1}, "viewOn": "people"}');
SELECT docshard.modify_collection('valid.people', '{"validationLevel": "some"}');
SELECT docshard.modify_collection('valid.none', '{"validator": {}}');
SELECT docshard.run_command('valid', '{"create": "bad", "validator": {"$where": "true"}}');

-- A writer through a view does not learn what the view hides from him.
SELECT docshard.create_collection('valid.hidden');
SELECT docshard.insert_one('valid.hidden', '{"_id": 1, "a": 1, "salary": 4242}');
SELECT docshard.modify_collection('valid.hidden', '{"validator": {"$or": [{"a": {"$lt": 10}}, {"salary": {"$gt": 100000}}]}}');
CREATE FOREIGN TABLE hidden (_id int, a int, salary int) SERVER docshard OPTIONS (namespace 'valid.hidden');
CREATE VIEW shown WITH (security_barrier) AS SELECT _id, a FROM hidden;
CREATE ROLE valid_updater;
GRANT SELECT, UPDATE ON shown TO valid_updater;
SET ROLE valid_updater;
UPDATE shown SET a = 99 WHERE _id = 1;
UPDATE shown SET a = _id + 98 WHERE a = 1 RETURNING a;
RESET ROLE;
UPDATE shown SET a = 99 WHERE _id = 1;
DROP VIEW shown;
DROP FOREIGN TABLE hidden;
DROP ROLE valid_updater;

-- Who may not change a validator may not bypass one.
CREATE ROLE valid_writer;
SELECT docshard.grant_access('valid_writer', '{"write": ["valid"]}') IS NOT NULL;
SET ROLE valid_writer;
SELECT docshard.insert_one('valid.people', '{"_id": 20}', '{"bypassDocumentValidation": true}');
SELECT docshard.run_command('valid', '{"insert": "people", "documents": [{"_id": 20}], "bypassDocumentValidation": true}');
SET docshard.bypass_validation = on;
SELECT docshard.insert_one('valid.collated', '{"_id": 2, "a": "y"}');
RESET ROLE;
RESET docshard.bypass_validation;
SELECT docshard.drop_database('valid');
SELECT docshard.revoke_access('valid_writer') ->> 'ok' AS ok;
DROP ROLE valid_writer;
