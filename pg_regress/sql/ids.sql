-- _id may be of any type but array, regular expression and undefined; the same value is the same _id.
SELECT docshard.insert_many('ids.c', ARRAY[
  '{"_id": 1}', '{"_id": 1.5}', '{"_id": "1"}', '{"_id": null}', '{"_id": true}', '{"_id": {"a": 1, "b": [2]}}',
  '{"_id": {"$date": "2020-01-01T00:00:00Z"}}', '{"_id": {"$oid": "5f1d7f3a2b4c6d8e9f0a1b2c"}}', '{"_id": {"$minKey": 1}}',
  '{"_id": {"$binary": {"base64": "AQID", "subType": "00"}}}', '{"_id": ""}', '{"_id": {}}']::jsonb[]) -> 'insertedCount' AS inserted;
SELECT docshard.find('ids.c', '{}', '{"sort": {"_id": -1}}');
SELECT docshard.find('ids.c', '{"_id": {"b": [2], "a": 1}}');
SELECT docshard.find('ids.c', '{"_id": null}');
SELECT docshard.find('ids.c', '{"_id": {"$gte": 1}}', '{"sort": {"_id": 1}}');
SELECT docshard.insert_one('ids.c', '{"_id": null}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.insert_one('ids.c', '{"_id": {"$numberDecimal": "1.50"}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.insert_one('ids.c', '{"_id": {"b": [2.0], "a": 1}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.drop_database('ids');
