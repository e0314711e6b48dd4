-- Types that JSON lacks are Extended JSON: canonical and legacy forms are returned in relaxed form.
SELECT docshard.insert_many('types.c', ARRAY[
  '{"_id": 1, "v": {"$numberInt": "5"}}', '{"_id": 2, "v": {"$numberLong": "9223372036854775807"}}',
  '{"_id": 3, "v": {"$numberDouble": "5.0"}}', '{"_id": 4, "v": {"$numberDouble": "NaN"}}',
  '{"_id": 5, "v": {"$numberDouble": "-Infinity"}}', '{"_id": 6, "v": {"$numberDecimal": "1.50"}}',
  '{"_id": 7, "v": {"$oid": "5F1D7F3A2B4C6D8E9F0A1B2C"}}', '{"_id": 8, "v": {"$date": {"$numberLong": "1577836800000"}}}',
  '{"_id": 9, "v": {"$date": "2020-01-01T01:00:00.5+01:00"}}', '{"_id": 10, "v": {"$date": -62135596800001}}',
  '{"_id": 11, "v": {"$binary": {"base64": "AQID", "subType": "00"}}}', '{"_id": 12, "v": {"$binary": "AQID", "$type": "0"}}',
  '{"_id": 13, "v": {"$uuid": "00112233-4455-6677-8899-aabbccddeeff"}}',
  '{"_id": 14, "v": {"$regularExpression": {"pattern": "^a", "options": "xi"}}}', '{"_id": 15, "v": {"$timestamp": {"t": 5, "i": 1}}}',
  '{"_id": 16, "v": {"$minKey": 1}}', '{"_id": 17, "v": {"$maxKey": 1}}', '{"_id": 18, "v": {"$symbol": "s"}}',
  '{"_id": 19, "v": {"$undefined": true}}', '{"_id": 20, "v": {"$code": "f()"}}',
  '{"_id": 21, "v": {"$ref": "c", "$id": 5, "$db": "types"}}', '{"_id": 22, "v": 1.0}', '{"_id": 23, "v": 1e3}']::jsonb[]) -> 'insertedCount' AS inserted;
SELECT d ->> '_id' AS id, d -> 'v' AS value FROM docshard.find('types.c', '{}', '{"sort": {"_id": 1}}') d;

-- A filter in any form matches values in any form.
SELECT docshard.find('types.c', '{"v": {"$oid": "5f1d7f3a2b4c6d8e9f0a1b2c"}}');
SELECT docshard.find('types.c', '{"v": {"$date": "2020-01-01T00:00:00Z"}}');
SELECT docshard.find('types.c', '{"v": {"$date": {"$numberLong": "1577836800500"}}}');
SELECT docshard.find('types.c', '{"v": {"$numberDecimal": "5"}}', '{"sort": {"_id": 1}}');
SELECT docshard.find('types.c', '{"v": {"$gte": {"$date": "2020-01-01T00:00:00.1Z"}}}');
SELECT docshard.find('types.c', '{"v": {"$numberDouble": "NaN"}}');

-- The order over all types.
SELECT d ->> '_id' AS id, d -> 'v' AS value FROM docshard.find('types.c', '{}', '{"sort": {"v": 1, "_id": 1}}') d;

-- Objects that look like Extended JSON but are ordinary.
SELECT docshard.insert_one('types.c', '{"_id": 99, "v": {"$oid": "abc"}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.insert_one('types.c', '{"_id": 99, "v": {"$date": "2020-13-01T00:00:00Z"}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.insert_one('types.c', '{"_id": 99, "v": {"$numberInt": "2147483648"}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.insert_one('types.c', '{"_id": 99, "v": {"$numberLong": "x"}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.insert_one('types.c', '{"_id": 99, "v": {"$numberDecimal": "1e9999"}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.insert_one('types.c', '{"_id": 99, "v": {"$binary": {"base64": "?", "subType": "00"}}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.insert_one('types.c', '{"_id": 99, "v": {"$oid": "5f1d7f3a2b4c6d8e9f0a1b2c", "x": 1}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.insert_one('types.c', '{"_id": 99, "v": {"$regex": 1}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.count_documents('types.c', '{"_id": 99}');
SELECT docshard.drop_database('types');
