-- Adding shards: other databases, here of the same server; listed and shown.
CREATE DATABASE regress_shard0 TEMPLATE template0 ENCODING UTF8;
CREATE DATABASE regress_shard1 TEMPLATE template0 ENCODING UTF8;
\getenv host PGHOST
\getenv port PGPORT
\set shard0 'host=' :host ' port=' :port ' dbname=regress_shard0'
\set shard1 'host=' :host ' port=' :port ' dbname=regress_shard1'
SELECT docshard.add_shard(:'shard0', '{"name": "shard0"}');
SELECT docshard.add_shard(:'shard1', '{"name": "shard1", "maxSize": 1024}');
-- Adding the same database again changes nothing, with or without the name.
SELECT docshard.add_shard(:'shard0', '{"name": "shard0"}');
SELECT docshard.add_shard(:'shard1');

SELECT name, server, state, max_size_mb, CASE WHEN server IS NOT NULL THEN chunks END AS chunks FROM docshard.list_shards() ORDER BY name;
SELECT name, regexp_replace(host, '^/.*:[0-9]+', '…') AS host, state, max_size_mb, server FROM docshard.shards ORDER BY name;
-- The connection uses an ordinary postgres_fdw server. The user mapping of the extension's owner is the router's login, a
-- role that is not a superuser; that of the service role is this database's own, to pull moving chunks.
SELECT srvname, CASE WHEN usename = current_user THEN 'owner' ELSE 'service' END AS mapped,
       (SELECT option_value FROM pg_options_to_table(umoptions) WHERE option_name = 'user') ~ '^docshard_[0-9a-f]{8}_s?[0-9]+$' AS role,
       (SELECT length(option_value) FROM pg_options_to_table(umoptions) WHERE option_name = 'password') AS password
  FROM pg_user_mappings WHERE srvname LIKE 'docshard_%' ORDER BY srvname, mapped;
SELECT DISTINCT r.rolsuper OR r.rolcreaterole OR r.rolcreatedb OR r.rolreplication OR r.rolbypassrls AS powerful
  FROM pg_roles r WHERE r.rolname LIKE 'docshard\_%';
SELECT what, details ->> 'name' AS name FROM docshard.changelog WHERE what = 'addShard' ORDER BY id;
-- A collection that is sharded by a hash starts with chunks on all shards.
SELECT docshard.shard_collection('shards.c', '{"_id": "hashed"}');
SELECT shard, count(*) AS chunks FROM docshard.chunks WHERE namespace = 'shards.c' GROUP BY shard ORDER BY shard;
SELECT docshard.insert_many('shards.c', array_agg(jsonb_build_object('_id', n))) -> 'insertedCount' AS inserted FROM generate_series(1, 300) n;
SELECT docshard.count_documents('shards.c');
SELECT shard, chunks, documents > 50 AS has_its_share FROM docshard.get_shard_distribution('shards.c', '{"count": true}') ORDER BY shard;
SELECT docshard.drop_database('shards');
-- A database's primary shard can be chosen once.
SELECT docshard.enable_sharding('home', 'shard1');
SELECT docshard.insert_one('home.c', '{"_id": 1}');
SELECT shard FROM docshard.chunks WHERE namespace = 'home.c';
SELECT docshard.find('home.c');
SELECT docshard.enable_sharding('home', 'shard0');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.drop_database('home');
