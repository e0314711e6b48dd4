// A session of mongosh.
function check(holds, what) {
  if (!holds) throw new Error('not so: ' + what);
}
// The README's example, over a document that SQL has inserted.
const blue = EJSON.stringify(db.getSiblingDB('shop').fruit.find({tags: 'blue'}).toArray());
check(blue === '[{"_id":2,"name":"plum","tags":["ripe","blue"],"price":0.4}]', blue);

const shell = db.getSiblingDB('shell');
const items = shell.items;
check(items.insertMany([...Array(60).keys()].map(n => ({_id: n, n: n}))).acknowledged, 'insertMany');
check(items.countDocuments() === 60, 'countDocuments');
check(items.find().sort({_id: -1}).limit(2).toArray().map(each => each._id).join() === '59,58', 'sort and limit');
check(items.find().batchSize(7).toArray().length === 60, 'getMore');
items.updateOne({_id: 3}, {$set: {at: new Date(0), u: UUID('00000000-0000-0000-0000-000000000007'), d: NumberDecimal('1.50')}});
const found = items.findOne({_id: 3});
check(found.at.getTime() === 0 && found.d.toString() === '1.50' && found.u.toString().endsWith('7'), 'types');
check(items.createIndex({n: 1}, {unique: true}) === 'n_1', 'createIndex');
check(items.getIndexes().map(index => index.name).sort().join() === '_id_,n_1', 'getIndexes');
try {
  items.insertOne({_id: 3});
  check(false, 'a duplicate is refused');
} catch (error) {
  check(error.code === 11000, 'code ' + error.code);
}
check(items.aggregate([{$group: {_id: null, sum: {$sum: '$n'}}}]).toArray()[0].sum === 1770, 'aggregate');
check(db.adminCommand({listDatabases: 1}).databases.some(each => each.name === 'shell'), 'listDatabases');
check(shell.getCollectionNames().join() === 'items', 'getCollectionNames');
check(db.hello().msg === 'isdbgrid', 'hello');
check(items.deleteMany({n: {$lt: 10}}).deletedCount === 10, 'deleteMany');
const session = db.getMongo().startSession();
const within = session.getDatabase('shell').items;
session.startTransaction();
within.insertOne({_id: 'kept'});
within.updateMany({n: {$gte: 50}}, {$set: {high: true}});
check(items.countDocuments({high: true}) === 0, 'a transaction is not seen from outside');
session.commitTransaction();
check(items.countDocuments({high: true}) === 10, 'commitTransaction');
session.startTransaction({readConcern: {level: 'snapshot'}});
within.deleteMany({});
session.abortTransaction();
check(items.countDocuments() === 51, 'abortTransaction');
session.withTransaction(() => within.deleteOne({_id: 'kept'}));
check(items.countDocuments() === 50, 'withTransaction');
session.endSession();
check(items.drop(), 'drop');
print('done');
