-- Transactions over several shards are rolled back on every shard, savepoints included.
SELECT docshard.shard_collection('tx.c', '{"_id": "hashed"}', '{"numInitialChunks": 6}');
SELECT docshard.insert_many('tx.c', array_agg(jsonb_build_object('_id', n, 'v', 0))) -> 'insertedCount' AS inserted FROM generate_series(1, 30) n;
SELECT count(DISTINCT shard) AS shards FROM docshard.chunks WHERE namespace = 'tx.c';

-- Before the commit only the transaction sees its writes.
BEGIN;
SELECT docshard.update_many('tx.c', '{}', '{"$set": {"v": 1}}') -> 'modifiedCount' AS modified;
SELECT docshard.delete_many('tx.c', '{"_id": {"$gt": 20}}') -> 'deletedCount' AS deleted;
SELECT docshard.count_documents('tx.c', '{"v": 1}');
ROLLBACK;
SELECT docshard.count_documents('tx.c', '{"v": 1}') AS changed, docshard.count_documents('tx.c') AS documents;
BEGIN;
SELECT docshard.update_many('tx.c', '{}', '{"$set": {"v": 1}}') -> 'modifiedCount' AS modified;
COMMIT;
SELECT docshard.count_documents('tx.c', '{"v": 1}');

-- Savepoints.
BEGIN;
SELECT docshard.update_many('tx.c', '{}', '{"$inc": {"v": 1}}') -> 'modifiedCount' AS modified;
SAVEPOINT a;
SELECT docshard.delete_many('tx.c', '{}') -> 'deletedCount' AS deleted;
SAVEPOINT b;
SELECT docshard.insert_one('tx.c', '{"_id": 100, "v": 9}') -> 'insertedId' AS id;
ROLLBACK TO b;
SELECT docshard.count_documents('tx.c');
ROLLBACK TO a;
SELECT docshard.count_documents('tx.c');
SAVEPOINT c;
SELECT docshard.insert_one('tx.c', '{"_id": 1}');
ROLLBACK TO c;
SELECT docshard.insert_one('tx.c', '{"_id": 101, "v": 2}') -> 'insertedId' AS id;
RELEASE c;
COMMIT;
SELECT docshard.count_documents('tx.c', '{"v": 2}');

-- An error undoes the transaction, as always in PostgreSQL; an EXCEPTION block in plpgsql is a savepoint.
BEGIN;
SELECT docshard.update_many('tx.c', '{}', '{"$set": {"v": 3}}') -> 'modifiedCount' AS modified;
SELECT 1 / 0;
SELECT docshard.count_documents('tx.c');
COMMIT;
SELECT docshard.count_documents('tx.c', '{"v": 3}');
DO $$
BEGIN
  PERFORM docshard.insert_one('tx.c', '{"_id": 102, "v": 4}');
  BEGIN
    PERFORM docshard.update_many('tx.c', '{}', '{"$set": {"v": 4}}');
    PERFORM docshard.insert_one('tx.c', '{"_id": 102}');
  EXCEPTION WHEN unique_violation THEN
    RAISE NOTICE 'caught: %', SQLERRM;
  END;
END $$;
SELECT docshard.count_documents('tx.c', '{"v": 4}');

-- Isolation levels and READ ONLY apply at the shards, too.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT docshard.count_documents('tx.c', '{"v": 2}');
SELECT docshard.update_one('tx.c', '{"_id": 102}', '{"$set": {"v": 5}}') -> 'modifiedCount' AS modified;
COMMIT;
-- An insert into a collection that it creates, also in the router's own database.
SELECT docshard.enable_sharding('txl', 'local');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT docshard.insert_one('txl.a', '{"_id": 1}') -> 'insertedId' AS id;
SELECT docshard.find('txl.a', '{}');
COMMIT;
SELECT docshard.drop_database('txl');
BEGIN READ ONLY;
SELECT docshard.count_documents('tx.c', '{"v": 5}');
SELECT docshard.insert_one('tx.c', '{"_id": 103}');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;

-- DDL is transactional, too.
BEGIN;
SELECT docshard.shard_collection('tx.new', '{"_id": "hashed"}');
SELECT docshard.insert_many('tx.new', array_agg(jsonb_build_object('_id', n))) -> 'insertedCount' AS inserted FROM generate_series(1, 30) n;
SELECT docshard.create_index('tx.new', '{"a": 1}');
SELECT docshard.drop_collection('tx.c');
SELECT docshard.count_documents('tx.c'), docshard.count_documents('tx.new');
ROLLBACK;
SELECT docshard.count_documents('tx.c'), docshard.count_documents('tx.new');

-- Cursors: fetched in parts with other statements in between, and left open.
BEGIN;
DECLARE c CURSOR FOR SELECT docshard.find('tx.c', '{"_id": {"$lte": 30}}', '{"sort": {"_id": 1}}');
FETCH 2 FROM c;
SELECT docshard.count_documents('tx.c', '{"_id": 1}');
FETCH 1 FROM c;
COMMIT;
SELECT docshard.find('tx.c', '{"_id": {"$lte": 30}}', '{"sort": {"_id": 1}}') LIMIT 2;
-- The user's two-phase commit: the writes are neither visible nor lost until it is decided.
BEGIN;
SELECT docshard.update_many('tx.c', '{}', '{"$set": {"v": 7}}') -> 'modifiedCount' AS modified;
PREPARE TRANSACTION 'mine';
SELECT docshard.count_documents('tx.c', '{"v": 7}');
COMMIT PREPARED 'mine';
SELECT docshard.count_documents('tx.c', '{"v": 7}');
BEGIN;
SELECT docshard.update_many('tx.c', '{}', '{"$set": {"v": 8}}') -> 'modifiedCount' AS modified;
PREPARE TRANSACTION 'mine';
ROLLBACK PREPARED 'mine';
SELECT docshard.count_documents('tx.c', '{"v": 8}');
-- A name that a router would give to its part at a shard.
BEGIN;
SELECT docshard.update_many('tx.c', '{}', '{"$set": {"v": 9}}') -> 'modifiedCount' AS modified;
PREPARE TRANSACTION 'docshard_mine';
ROLLBACK;
-- A prepared transaction that only reads.
BEGIN;
SELECT docshard.count_documents('tx.c');
PREPARE TRANSACTION 'mine';
COMMIT PREPARED 'mine';
-- A prepared transaction is not committed: the session discards cached changes of the catalog.
BEGIN;
SELECT docshard.create_index('tx.c', '{"v": 1}');
SELECT docshard.count_documents('tx.c', '{"v": 7}', '{"hint": "v_1"}');
PREPARE TRANSACTION 'mine';
SELECT docshard.count_documents('tx.c', '{"v": 7}', '{"hint": "v_1"}');
ROLLBACK PREPARED 'mine';
SELECT docshard.count_documents('tx.c', '{"v": 7}', '{"hint": "v_1"}');
SELECT docshard.drop_database('tx');
SELECT count(*) FROM pg_prepared_xacts;
