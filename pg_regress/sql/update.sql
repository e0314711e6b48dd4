-- Updating: one, many, upserts; the operators $set, $unset, $inc.
SELECT docshard.insert_many('upd.c', ARRAY[
  '{"_id": 1, "n": 1, "a": {"b": 1}}', '{"_id": 2, "n": 2, "l": [1, 2]}', '{"_id": 3, "n": 3}']::jsonb[]) -> 'insertedCount' AS inserted;

SELECT docshard.update_one('upd.c', '{"_id": 1}', '{"$set": {"n": 10, "a.c": 2, "x.y": true}}');
SELECT docshard.find_one('upd.c', '{"_id": 1}');
-- An update without effect matches, but does not modify.
SELECT docshard.update_one('upd.c', '{"_id": 1}', '{"$set": {"n": 10}}');
SELECT docshard.update_one('upd.c', '{"_id": 99}', '{"$set": {"n": 10}}');
SELECT docshard.update_one('upd.c', '{"_id": 1}', '{"$unset": {"a.b": "", "nothing": 1}}');
SELECT docshard.find_one('upd.c', '{"_id": 1}');
-- $inc starts from 0, and keeps integers integers.
SELECT docshard.update_one('upd.c', '{"_id": 1}', '{"$inc": {"n": 5, "m": -1, "f": 0.5}}');
SELECT docshard.find_one('upd.c', '{"_id": 1}');
-- Array elements by position; beyond the end nulls fill up.
SELECT docshard.update_one('upd.c', '{"_id": 2}', '{"$set": {"l.0": "first", "l.4": 5}}');
SELECT docshard.find_one('upd.c', '{"_id": 2}');

-- Many.
SELECT docshard.update_many('upd.c', '{"n": {"$lte": 3}}', '{"$set": {"small": true}, "$inc": {"n": 1}}');
SELECT docshard.find('upd.c', '{"small": true}', '{"sort": {"_id": 1}}');
SELECT docshard.update_many('upd.c', '{}', '{"$unset": {"small": 1}}');
SELECT docshard.update_many('upd.none', '{}', '{"$unset": {"small": 1}}');

-- Upserts build a document from the filter's equalities and the update.
SELECT docshard.update_one('upd.c', '{"_id": 50, "kind": "x"}', '{"$set": {"a.b": 1}, "$inc": {"n": 2}}', '{"upsert": true}');
SELECT docshard.find_one('upd.c', '{"_id": 50}');
SELECT docshard.update_one('upd.c', '{"_id": 50}', '{"$inc": {"n": 2}}', '{"upsert": true}');
SELECT docshard.update_many('upd.c', '{"_id": 51, "n": {"$gt": 5}}', '{"$set": {"b": 1}}', '{"upsert": true}');
SELECT docshard.find_one('upd.c', '{"_id": 51}');
SELECT docshard.update_one('upd.c', '{"name": "new"}', '{"$set": {"b": 1}}', '{"upsert": true}') - 'upsertedId';
SELECT docshard.find_one('upd.c', '{"name": "new"}') - '_id';

-- Replacing keeps the _id.
SELECT docshard.replace_one('upd.c', '{"_id": 3}', '{"name": "three"}');
SELECT docshard.find_one('upd.c', '{"_id": 3}');
SELECT docshard.replace_one('upd.c', '{"_id": 3}', '{"_id": 3, "name": "drei"}');
SELECT docshard.replace_one('upd.c', '{"_id": 60}', '{"name": "sixty"}');
SELECT docshard.replace_one('upd.c', '{"_id": 60}', '{"name": "sixty"}', '{"upsert": true}');
SELECT docshard.find_one('upd.c', '{"_id": 60}');
SELECT docshard.drop_database('upd');
