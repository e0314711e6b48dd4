-- A recipient checks the documents that it has pulled before it stores them, whoever wrote the staging table.
SELECT docshard.shard_collection('arrive.c', '{"k": 1}');
SELECT docshard.insert_one('arrive.c', '{"_id": 1, "k": 5}') IS NOT NULL AS inserted;
SELECT "table", substring("table" FROM '[0-9]+$') AS number FROM docshard.collections WHERE namespace = 'arrive.c' \gset
CREATE TABLE docshard_data.m990_staging (batch int, seq bigint, skey bytea, id bytea, doc jsonb, documents bigint, packed bytea);
CREATE INDEX ON docshard_data.m990_staging (batch);
CREATE FUNCTION pg_temp.length(part bytea) RETURNS bytea LANGUAGE sql AS $$
  SELECT string_agg(set_byte('\x00', 0, (length(part) >> (8 * n)) & 255), '' ORDER BY n) FROM generate_series(0, 3) n $$;
-- Replaces the staging table's batch 1 by this document.
CREATE FUNCTION pg_temp.stage(skey bytea, id bytea, doc bytea) RETURNS void LANGUAGE sql AS $$
  DELETE FROM docshard_data.m990_staging;
  INSERT INTO docshard_data.m990_staging (batch, documents, packed)
  SELECT 1, 1, pg_temp.length(skey) || pg_temp.length(id) || pg_temp.length(doc) || skey || id || doc $$;
CREATE FUNCTION pg_temp.key(value text, path text DEFAULT 'k') RETURNS bytea LANGUAGE sql AS $$
  SELECT docshard_internal.shard_key(format('{"%s": %s}', path, value)::jsonb, format('{"%s": 1}', path)) $$;
\set load 'SELECT docshard_internal.load_batch(990, ' :number ', 1, false, pg_temp.key(''10''), pg_temp.key(''20''), ''{"k": 1}'')'
-- A valid document.
SELECT pg_temp.stage(pg_temp.key('12'), pg_temp.key('2'), docshard_internal.pack('{"_id": 2, "k": 12}'));
:load;
-- Outside the range; another shard key; another _id; not a document; not jsonb.
SELECT pg_temp.stage(pg_temp.key('20'), pg_temp.key('3'), docshard_internal.pack('{"_id": 3, "k": 20}'));
:load;
SELECT pg_temp.stage(pg_temp.key('13'), pg_temp.key('3'), docshard_internal.pack('{"_id": 3, "k": 14}'));
:load;
SELECT pg_temp.stage(pg_temp.key('13'), pg_temp.key('3'), docshard_internal.pack('{"_id": 4, "k": 13}'));
:load;
SELECT pg_temp.stage(pg_temp.key('13'), pg_temp.key('3'), docshard_internal.pack('{"_id": 3, "k": 13, "x": {"$oid": 1}}'));
:load;
SELECT pg_temp.stage(pg_temp.key('13'), pg_temp.key('3'), docshard_internal.pack('[1]'));
:load;
SELECT pg_temp.stage(pg_temp.key('13'), pg_temp.key('3'), '\x0100002003000080ffffff00');
:load;
UPDATE docshard_data.m990_staging SET packed = substr(packed, 1, length(packed) - 1);
:load;
SELECT docshard.find('arrive.c', '{}', '{"sort": {"k": 1}}');
-- Changes are checked in the same way; those of deleted documents by their keys.
CREATE FUNCTION pg_temp.change(k text, id text, doc jsonb) RETURNS void LANGUAGE sql AS $$
  DELETE FROM docshard_data.m990_staging;
  INSERT INTO docshard_data.m990_staging (batch, seq, skey, id, doc)
  SELECT 2, n, pg_temp.key(k), pg_temp.key(id), doc FROM generate_series(1, 2) n $$;
\set apply 'SELECT docshard_internal.apply_changes(990, ' :number ', 2, pg_temp.key(''10''), pg_temp.key(''20''), ''{"k": 1}'')'
-- A new document, the same again, changed, deleted, deleted again. Each is in the log twice.
SELECT pg_temp.change('15', '1', '{"_id": 1, "k": 15}');
:apply;
:apply;
SELECT pg_temp.change('15', '1', '{"_id": 1, "k": 15, "x": 1}');
:apply;
SELECT docshard.find('arrive.c', '{}', '{"sort": {"k": 1}}');
SELECT pg_temp.change('15', '1', NULL);
:apply;
:apply;
-- Another shard key; not a document; outside the range, also for a deleted document.
SELECT pg_temp.change('15', '1', '{"_id": 1, "k": 16}');
:apply;
SELECT pg_temp.change('15', '1', '{"_id": {"$oid": 1}, "k": 15}');
:apply;
SELECT pg_temp.change('5', '1', '{"_id": 1, "k": 5}');
:apply;
SELECT pg_temp.change('5', '1', NULL);
:apply;
SELECT docshard.find('arrive.c', '{}', '{"sort": {"k": 1}}');
SELECT docshard_internal.apply_changes(NULL, NULL, NULL, '', NULL, '{}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard_internal.decode_part('AAAA');
\echo :LAST_ERROR_SQLSTATE
DROP TABLE docshard_data.m990_staging;
SELECT docshard.drop_database('arrive');
