-- Values of Extended JSON from PostgreSQL's, and back.
SET TimeZone = 'America/New_York';
SET DateStyle = 'German, DMY';
SELECT docshard.insert_many('vals.c', ARRAY['{"_id": 1, "at": {"$date": "2026-07-01"}}', '{"_id": 2, "at": {"$date": "2026-07-01 09:30:00.25+02"}}',
    '{"_id": 3, "at": {"$date": "2026-07-01T09:30:00.123456"}}', '{"_id": 4, "at": {"$date": "2026-07-01 09:30"}}']::jsonb[]) -> 'insertedCount' AS n;
SELECT docshard.find('vals.c', '{"at": {"$gte": {"$date": "2026-07-01 07:30:00"}}}', '{"sort": {"at": 1}}');
SELECT docshard.insert_one('vals.c', '{"at": {"$date": "01.07.2026"}}');
SELECT docshard.insert_one('vals.c', '{"at": {"$date": "infinity"}}');
SELECT docshard.date('2026-07-01 09:30:00+02'), docshard.date('1969-12-31 23:59:59.9999+00'), docshard.date('2026-07-01 09:30:00.1234567+00'),
       docshard.date('0044-03-15 12:00:00+00 BC'), docshard.date(NULL);
SELECT docshard.date('infinity');
SELECT docshard.insert_one('vals.d', jsonb_build_object('_id', docshard.object_id('2026-07-01 00:00:00+00'), 'at', docshard.date('2026-07-01 00:00:00+00'),
    'price', docshard.decimal(12.50), 'none', docshard.decimal(NULL))) -> 'insertedId' AS id;
SELECT doc, docshard.to_timestamptz(doc -> '_id') AT TIME ZONE 'UTC' = '2026-07-01' AS same, docshard.to_timestamptz(doc -> 'at') AT TIME ZONE 'UTC' = '2026-07-01' AS same,
       docshard.to_numeric(doc -> 'price') AS price, docshard.to_numeric(doc -> 'none') AS none, docshard.to_numeric(doc -> 'missing') AS missing
  FROM docshard.find('vals.d', jsonb_build_object('price', docshard.decimal(12.5))) AS doc;
SELECT docshard.object_id() <> docshard.object_id() AS differ, docshard.to_timestamptz(docshard.object_id()) BETWEEN now() - interval '1 minute' AND now() + interval '1 minute' AS is_now,
       docshard.object_id('1901-12-13 20:45:52+00'), docshard.to_timestamptz('{"$oid": "800000000000000000000000"}') = '1901-12-13 20:45:52+00' AS first;
SELECT docshard.object_id('2038-01-19 03:14:08+00');
SELECT docshard.decimal('NaN'), docshard.decimal('-Infinity'), docshard.decimal(1234567890123456789012345678901234), docshard.decimal(0.000), docshard.decimal(-1e30);
SELECT docshard.decimal(12345678901234567890123456789012345);
SELECT v, docshard.to_numeric(v::jsonb) FROM (VALUES ('1'), ('1.5'), ('1e3'), ('9223372036854775807'), ('{"$numberDecimal": "1.50"}'), ('{"$numberDecimal": "NaN"}'),
    ('{"$numberDouble": "-Infinity"}'), ('{"$numberDecimal": "1E+20"}'), ('null')) AS given (v);
SELECT docshard.to_numeric('"1"');
SELECT docshard.to_numeric('{"a": 1}');
SELECT docshard.to_timestamptz('"2026-07-01"');
SELECT docshard.to_timestamptz('{"$date": "2026-07-01"}'), docshard.to_timestamptz('{"$date": {"$numberLong": "0"}}'), docshard.to_numeric('{"$numberLong": "5"}'),
       docshard.to_numeric('{"$numberDouble": "0.5"}'), docshard.to_numeric('{"$numberInt": "7"}');
SELECT docshard.to_timestamptz('{"$date": "nonsense"}');
SELECT docshard.to_timestamptz('{"$date": {"$numberLong": "9223372036854775807"}}');
SELECT docshard.to_timestamptz('{"$date": {"$numberLong": "-1"}}') = '1969-12-31 23:59:59.999+00' AS before;
RESET TimeZone;
RESET DateStyle;

-- explain says that a string is compared with a field that has dates only.
SELECT docshard.insert_many('vals.e', ARRAY['{"at": {"$date": "2026-07-01"}, "s": "a", "mixed": "a", "in": {"at": {"$date": "2026-07-01"}}, "l": [{"$date": "2026-07-01"}]}',
    '{"at": {"$date": "2026-07-02"}, "mixed": {"$date": "2026-07-02"}}', '{"none": 1}']::jsonb[]) -> 'insertedCount' AS n;
SELECT f, docshard.explain('vals.e', f::json) -> 'warnings' AS warnings FROM (VALUES ('{"at": {"$gte": "2026-07-01"}}'), ('{"at": "2026-07-01"}'), ('{"in.at": {"$lt": "2026"}, "s": "a"}'),
    ('{"at": {"$in": ["a", "b"]}}'), ('{"at": {"$gte": {"$date": "2026-07-01"}}}'), ('{"at": {"$ne": "a"}}'), ('{"at": null}'), ('{"s": "a", "mixed": "a", "none": "a", "l": "a", "no": "a"}'),
    ('{"$or": [{"at": "a"}, {"at": 1}]}'), ('{"at": {"$regex": "^2026"}}'), ('{}')) AS given (f);
SELECT docshard.aggregate('vals.e', '[{"$match": {"at": {"$gte": "2026-07-01"}}}, {"$group": {"_id": "$s"}}]', '{"explain": true}') -> 'warnings' AS warnings;
SELECT docshard.aggregate('vals.e', '[{"$match": {"at": {"$gte": "2026-07-01"}}}, {"$count": "n"}]', '{"explain": true}') -> 'warnings' AS warnings;

-- Expired documents are deleted at once.
SELECT docshard.insert_many('vals.t', ARRAY[jsonb_build_object('_id', 1, 'at', docshard.date(now() - interval '2 hours')), jsonb_build_object('_id', 2, 'at', docshard.date(now())), '{"_id": 3}']) -> 'insertedCount' AS n;
SELECT docshard.insert_one('vals.u', jsonb_build_object('_id', 1, 'at', docshard.date(now() - interval '2 hours'))) -> 'insertedId' AS id;
SELECT docshard.create_index(ns, '{"at": 1}', '{"expireAfterSeconds": 3600, "hidden": true, "concurrently": false}') FROM (VALUES ('vals.t'), ('vals.u')) AS given (ns);
BEGIN;
SET LOCAL docshard.notablescan = on;
SELECT docshard.expire_now('vals.t') -> 'ok' AS ok;
SHOW docshard.notablescan;
SELECT docshard.expire_now('vals.t');
COMMIT;
SELECT docshard.find('vals.t', '{}', '{"projection": {"_id": 1}, "sort": {"_id": 1}}');
SELECT docshard.expire_now() -> 'ok' AS ok;
SELECT docshard.count_documents('vals.u');
SELECT docshard.expire_now('vals.none');
SELECT docshard.expire_now('vals');
SELECT docshard.drop_database('vals') -> 'ok' AS ok;
