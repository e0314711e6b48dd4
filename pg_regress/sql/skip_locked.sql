-- A queue whose workers skip the jobs that others have locked. A prepared transaction stands for another session.
SELECT docshard.create_index('q.jobs', '{"state": 1, "at": 1}') AS name;
SELECT docshard.insert_many('q.jobs', array_agg(jsonb_build_object('_id', n, 'state', 'new', 'at', 10 - n))) -> 'insertedCount' AS inserted
  FROM generate_series(1, 6) n;

BEGIN;
SELECT docshard.find_one_and_update('q.jobs', '{"state": "new"}', '{"$set": {"state": "taken"}}', '{"sort": {"at": 1}, "skipLocked": true}');
-- The same transaction does not skip what it has locked itself.
SELECT docshard.find_one_and_update('q.jobs', '{"state": "taken"}', '{"$set": {"by": 1}}', '{"skipLocked": true, "returnDocument": "after", "projection": {"by": 1}}');
PREPARE TRANSACTION 'other';

SELECT docshard.find_one_and_update('q.jobs', '{"state": "new"}', '{"$set": {"state": "taken"}}', '{"sort": {"at": 1}, "skipLocked": true, "returnDocument": "after", "projection": {"at": 1}}');
SELECT docshard.find_one_and_replace('q.jobs', '{"state": "new"}', '{"state": "gone"}', '{"sort": {"at": -1}, "skipLocked": true}');
SELECT docshard.find_one_and_delete('q.jobs', '{"state": "new"}', '{"sort": {"at": 1}, "skipLocked": true, "projection": {"_id": 1}}');
SELECT docshard.find_and_modify('q.jobs', '{"query": {"state": "new"}, "update": {"$set": {"state": "taken"}}, "sort": {"_id": 1}, "skipLocked": true, "fields": {"_id": 1}}');
SELECT docshard.run_command('q', '{"findAndModify": "jobs", "query": {"state": "new"}, "remove": true, "skipLocked": true, "fields": {"_id": 1}}');
-- What is left is locked.
SELECT docshard.find_one_and_update('q.jobs', '{"state": "new"}', '{"$set": {"state": "taken"}}', '{"sort": {"at": 1}, "skipLocked": true}') IS NULL AS nothing;
SELECT docshard.find_one_and_delete('q.jobs', '{"_id": 6}', '{"skipLocked": true}') IS NULL AS nothing;
SELECT docshard.run_command('q', '{"findAndModify": "jobs", "query": {"_id": 6}, "remove": true, "skipLocked": true}');

-- A rollback gives the job back.
ROLLBACK PREPARED 'other';
SELECT docshard.find_one_and_update('q.jobs', '{"state": "new"}', '{"$set": {"state": "taken"}}', '{"sort": {"at": 1}, "skipLocked": true}');
SELECT docshard.find_one_and_update('q.jobs', '{"state": "new"}', '{"$set": {"state": "taken"}}', '{"skipLocked": true}') IS NULL AS nothing;

-- An update without an effect locks its document, too.
BEGIN;
SELECT docshard.find_one_and_update('q.jobs', '{"_id": 6}', '{"$set": {"state": "taken"}}', '{"skipLocked": true}');
PREPARE TRANSACTION 'other';
SELECT docshard.find_one_and_update('q.jobs', '{"state": "taken"}', '{"$set": {"state": "old"}}', '{"sort": {"_id": -1}, "skipLocked": true, "projection": {"_id": 1}}');
COMMIT PREPARED 'other';
SELECT docshard.find('q.jobs', '{}', '{"sort": {"_id": 1}}');

-- A locked document may match, so nothing can be inserted instead.
SELECT docshard.find_one_and_update('q.jobs', '{"_id": 9}', '{"$set": {"a": 1}}', '{"skipLocked": true, "upsert": true}');
SELECT docshard.find_one_and_replace('q.jobs', '{"_id": 9}', '{"a": 1}', '{"skipLocked": true, "upsert": true}');
SELECT docshard.find_and_modify('q.jobs', '{"query": {"_id": 9}, "update": {"a": 1}, "skipLocked": true, "upsert": true}');
SELECT docshard.run_command('q', '{"findAndModify": "jobs", "query": {"_id": 9}, "update": {"a": 1}, "skipLocked": true, "upsert": true}');
SELECT docshard.find_one_and_update('q.jobs', '{}', '{"$set": {"a": 1}}', '{"skipLocked": 1}');
SELECT docshard.update_one('q.jobs', '{}', '{"$set": {"a": 1}}', '{"skipLocked": true}');
SELECT docshard.find_one_and_update('q.none', '{}', '{"$set": {"a": 1}}', '{"skipLocked": true}') IS NULL AS nothing;
SELECT docshard.drop_database('q');
