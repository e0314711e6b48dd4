-- What add_shard refuses; nothing remains of a refused call.
\getenv host PGHOST
\getenv port PGPORT
CREATE PROCEDURE try(conn text, options json DEFAULT '{}') LANGUAGE plpgsql AS $$
DECLARE detail text; hint text; answer json;
BEGIN
  answer := docshard.add_shard(conn, options);
  RAISE NOTICE '%', answer;
EXCEPTION WHEN OTHERS THEN
  GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
  RAISE NOTICE '% %', SQLSTATE, regexp_replace(split_part(SQLERRM, E'\n', 1), '"[^"]*": connection to server .* failed:.*', '…: connection failed');
  RAISE NOTICE '  % %', detail, hint;
  IF concat(SQLERRM, detail, hint) ~ 'secret' THEN RAISE WARNING 'the password is told'; END IF;
END $$;
\set server 'host=' :host ' port=' :port
-- The router itself.
CALL try(:'server' || ' dbname=regress');
CALL try(:'server');
-- The same database under another name; a name that is in use.
CALL try(:'server' || ' dbname=regress_shard0', '{"name": "other"}');
CREATE DATABASE regress_other TEMPLATE template0 ENCODING UTF8;
CALL try(:'server' || ' dbname=regress_other', '{"name": "shard0"}');
-- Unreachable: a database that does not exist, a port on which no server listens.
CALL try(:'server' || ' dbname=nowhere');
CALL try('host=' || :'host' || ' port=1 dbname=regress_other');
CALL try('nobody/localhost:1,127.0.0.1:1');
-- Malformed.
CALL try('');
CALL try('dbname');
CALL try('nonsense=1');
CALL try('postgresql://[');
CALL try('set/');
CALL try('set/host:port');
-- Names and options.
CALL try(:'server' || ' dbname=regress_other', '{"name": ""}');
CALL try(:'server' || ' dbname=regress_other', '{"name": "a b"}');
CALL try(:'server' || ' dbname=regress_other', '{"name": "local"}');
CALL try(:'server' || ' dbname=regress_other', '{"name": "config"}');
CALL try(:'server' || ' dbname=regress_other', json_build_object('name', repeat('x', 51)));
CALL try(:'server' || ' dbname=regress_other', '{"maxSize": -1}');
CALL try(:'server' || ' dbname=regress_other', '{"maxSize": "big"}');
CALL try(:'server' || ' dbname=regress_other', '{"maxsize": 1}');
-- Messages contain no password.
CALL try(:'server' || ' dbname=nowhere user=nobody password=secret');
-- A database with data of another cluster, a router with collections, a database in another encoding.
\set here :DBNAME
\connect regress_other
SET client_min_messages = warning;
CREATE EXTENSION docshard CASCADE;
RESET client_min_messages;
SELECT docshard.insert_one('own.c', '{"_id": 1}');
\connect :here
CALL try(:'server' || ' dbname=regress_other', '{"name": "other"}');
\connect regress_other
SELECT docshard.drop_database('own');
UPDATE docshard_data.node SET cluster_id = 1, shard = 'theirs';
INSERT INTO docshard_data.node (cluster_id, shard) SELECT 1, 'theirs' WHERE NOT EXISTS (SELECT FROM docshard_data.node);
-- Administration on a shard says which cluster it belongs to.
SELECT docshard.add_shard('dbname=x');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.shard_collection('a.b', '{"c": 1}');
\echo :LAST_ERROR_SQLSTATE
\connect :here
CALL try(:'server' || ' dbname=regress_other', '{"name": "other"}');
CREATE DATABASE regress_latin ENCODING LATIN1 LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0;
CALL try(:'server' || ' dbname=regress_latin', '{"name": "latin"}');
SELECT name FROM docshard.list_shards() ORDER BY name;
SELECT srvname FROM pg_foreign_server WHERE srvname <> 'docshard' ORDER BY srvname;
DROP PROCEDURE try;
-- As far as this server knows, the database is a shard.
DROP DATABASE regress_other;
\echo :LAST_ERROR_SQLSTATE
\connect regress_other
SELECT d ->> 'role' AS role, d ->> 'shard' AS shard, d ->> 'confirm' AS confirm, d ->> 'collections' AS collections FROM docshard.dismantle() AS d;
SELECT docshard.dismantle('0000000000000001');
\connect :here
DROP DATABASE regress_other;
DROP DATABASE regress_latin;
