-- Removing a shard: started, ongoing while it has chunks or is some database's primary, completed.
SELECT docshard.enable_sharding('rm', 'shard1');
SELECT docshard.shard_collection('rm.c', '{"name": 1}');
SELECT docshard.split_at('rm.c', '{"name": "m"}');
SELECT docshard.insert_many('rm.c', ARRAY['{"_id": 1, "name": "ann"}', '{"_id": 2, "name": "zoe"}']::jsonb[]) -> 'insertedCount' AS inserted;
SELECT docshard.insert_one('rm.plain', '{"_id": 1}') -> 'insertedId' AS id;
SELECT docshard.remove_shard('nowhere');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.remove_shard('shard1');
SELECT docshard.remove_shard('shard1');
SELECT name, state FROM docshard.shards ORDER BY name;
-- The shard is not lost; nor is this database; a token without its option is refused.
SELECT docshard.remove_shard('shard1', '{"lost": true}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.remove_shard('shard1', '{"lost": true, "token": "a guess"}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.remove_shard('local', '{"lost": true}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.remove_shard('shard1', '{"token": "a guess"}');
SELECT docshard.remove_shard('shard1', '{"gone": true}');
SELECT count(*) FROM docshard_catalog.lost_shards;
-- Objects that the cluster needs cannot be dropped.
DROP EXTENSION docshard CASCADE;
\echo :LAST_ERROR_SQLSTATE
SET client_min_messages = error;
\set VERBOSITY sqlstate
DROP SERVER docshard_shard1 CASCADE;
DROP SERVER docshard_local CASCADE;
DROP USER MAPPING FOR CURRENT_USER SERVER docshard_shard1;
\set VERBOSITY default
RESET client_min_messages;
SELECT docshard.dismantle('0123456789abcdef');
\echo :LAST_ERROR_SQLSTATE
-- It gets no new chunks.
SELECT docshard.enable_sharding('rm2', 'shard1');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.shard_collection('rm3.hashed', '{"a": "hashed"}');
SELECT DISTINCT shard FROM docshard.chunks WHERE namespace = 'rm3.hashed' ORDER BY shard;
SELECT docshard.drop_database('rm3');
-- Drained manually here; if the balancer is on, it does this.
SELECT docshard.move_chunk('rm.c', '{"name": "ann"}', 'shard0') ->> 'documents' AS documents;
SELECT docshard.move_chunk('rm.c', '{"name": "ann"}', 'shard1');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.remove_shard('shard1');
SELECT docshard.start_balancer();
CREATE PROCEDURE wait_until(condition text) LANGUAGE plpgsql AS $$
DECLARE met boolean;
BEGIN
  FOR i IN 1..300 LOOP
    EXECUTE 'SELECT ' || condition INTO met;
    IF met THEN RETURN; END IF;
    COMMIT;
    PERFORM pg_sleep(0.1);
  END LOOP;
  RAISE EXCEPTION 'not met in 30 seconds: %', condition;
END $$;
CALL wait_until($$NOT EXISTS (SELECT FROM docshard.chunks WHERE namespace = 'rm.c' AND shard = 'shard1')$$);
SELECT docshard.stop_balancer() ->> 'stopped' AS stopped;
DROP PROCEDURE wait_until;
SELECT docshard.move_primary('rm', 'local') ->> 'primary' AS "primary";
SELECT docshard.remove_shard('shard1');
SELECT docshard.remove_shard('shard1');
\echo :LAST_ERROR_SQLSTATE
SELECT name, state FROM docshard.shards ORDER BY name;
SELECT srvname FROM pg_foreign_server WHERE srvname <> 'docshard' ORDER BY srvname;
SELECT docshard.find('rm.c', '{}', '{"sort": {"_id": 1}}');
SELECT docshard.find('rm.plain');
-- A removed shard can be added again.
\getenv host PGHOST
\getenv port PGPORT
\set shard1 'host=' :host ' port=' :port ' dbname=regress_shard1'
SELECT docshard.add_shard(:'shard1', '{"name": "shard1"}');
SELECT docshard.remove_shard('shard1') ->> 'state' AS state;
SELECT docshard.remove_shard('shard1') ->> 'state' AS state;
-- local is drained like any other; the last shard cannot be removed.
SELECT docshard.drop_database('rm');
SELECT docshard.remove_shard('local') ->> 'state' AS state;
SELECT docshard.remove_shard('local') ->> 'state' AS state;
SELECT docshard.remove_shard('shard0');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.insert_one('remote.c', '{"_id": 1}');
SELECT docshard.find('remote.c');
SELECT docshard.drop_database('remote');
SELECT docshard.add_shard('local');
SELECT docshard.remove_shard('shard0') ->> 'state' AS state;
SELECT docshard.remove_shard('shard0') ->> 'state' AS state;
SELECT name, state FROM docshard.shards ORDER BY name;
-- Sessions that used a shard may still be connected to it.
DROP DATABASE regress_shard0 WITH (FORCE);
DROP DATABASE regress_shard1 WITH (FORCE);
