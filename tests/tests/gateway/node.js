// Node's driver: node.js URI.
const assert = require('node:assert');
const {MongoClient, ObjectId, Long, Decimal128} = require('mongodb');

async function crud(db) {
  const items = db.collection('items');
  const made = await items.insertOne({name: 'saw', price: Decimal128.fromString('1.50'), count: Long.fromString('9007199254740993')});
  assert(made.insertedId instanceof ObjectId);
  const found = await items.findOne({_id: made.insertedId}, {promoteLongs: false});
  assert.equal(found.price.toString(), '1.50');
  assert.equal(found.count.toString(), '9007199254740993');
  await items.insertMany([...Array(250).keys()].map(n => ({_id: n, n, even: n % 2 === 0})));
  const seen = [];
  for await (const each of items.find({n: {$gte: 0}}).sort({n: -1}).batchSize(30)) seen.push(each.n);
  assert.deepEqual(seen, [...Array(250).keys()].reverse());
  const bulk = await items.bulkWrite([
    {updateMany: {filter: {even: true}, update: {$inc: {n: 1000}}}},
    {deleteOne: {filter: {_id: 3}}},
    {replaceOne: {filter: {_id: 1}, replacement: {n: -1}}},
    {updateOne: {filter: {_id: 'new'}, update: {$set: {n: 0}}, upsert: true}},
  ]);
  assert.deepEqual([bulk.modifiedCount, bulk.deletedCount, bulk.upsertedCount], [126, 1, 1]);
  const [sums] = await items.aggregate([{$match: {even: true}}, {$group: {_id: null, n: {$sum: '$n'}}}]).toArray();
  assert.equal(sums.n, 125 * 124 + 125 * 1000);
  assert.equal((await items.findOneAndUpdate({_id: 5}, {$set: {n: 55}}, {returnDocument: 'after'})).n, 55);
  await assert.rejects(items.insertOne({_id: 5}), {code: 11000});
  await assert.rejects(items.find({n: {$nope: 1}}).toArray(), {code: 2});
}

async function transactions(client, db) {
  const accounts = db.collection('accounts');
  await accounts.insertMany([{_id: 'ann', balance: 10}, {_id: 'bob', balance: 0}]);
  await client.withSession(session => session.withTransaction(async () => {
    await accounts.updateOne({_id: 'ann'}, {$inc: {balance: -4}}, {session});
    await accounts.updateOne({_id: 'bob'}, {$inc: {balance: 4}}, {session});
    assert.equal((await accounts.findOne({_id: 'bob'})).balance, 0, 'not seen from outside');
  }));
  assert.deepEqual((await accounts.find().sort({_id: 1}).toArray()).map(each => each.balance), [6, 4]);
  // A causally consistent session goes on where another one was.
  const session = client.startSession();
  await accounts.insertOne({_id: 'eve'}, {session});
  const other = client.startSession();
  other.advanceClusterTime(session.clusterTime);
  other.advanceOperationTime(session.operationTime);
  assert.equal((await accounts.findOne({_id: 'eve'}, {session: other}))._id, 'eve');
  await Promise.all([session.endSession(), other.endSession()]);
}

async function indexes(db) {
  const items = db.collection('items');
  await items.createIndexes([{key: {b: -1, a: 1}, name: 'ba'}, {key: {name: 1}, unique: true, sparse: true}]);
  const listed = await items.listIndexes().toArray();
  assert.deepEqual(listed.map(index => index.name).sort(), ['_id_', 'ba', 'name_1']);
  assert.deepEqual(Object.entries(listed.find(index => index.name === 'ba').key), [['b', -1], ['a', 1]]);
}

async function main() {
  const client = await MongoClient.connect(process.argv[2]);
  const db = client.db('node');
  await crud(db);
  await transactions(client, db);
  await indexes(db);
  await client.close();
  console.log('done');
}

main().catch(error => {
  console.error(error);
  process.exit(1);
});
