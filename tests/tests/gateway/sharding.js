// The helpers of mongosh for a sharded cluster.
function check(holds, what) {
  if (!holds) throw new Error('not so: ' + what);
}
check(sh.enableSharding('shop', 'local').ok === 1, 'enableSharding');
check(sh.shardCollection('shop.ranged', {k: 1}).ok === 1, 'shardCollection');
check(sh.shardCollection('shop.hashed', {_id: 'hashed'}).ok === 1, 'shardCollection hashed');
check(sh.shardCollection('shop.compound', {b: 1, a: 1}).ok === 1, 'shardCollection compound');
check(sh.stopBalancer().ok === 1 && !sh.getBalancerState(), 'stopBalancer');
check(sh.splitAt('shop.ranged', {k: 5}).ok === 1, 'splitAt');
check(sh.addShardToZone('shard0', 'EU').ok === 1, 'addShardToZone');
check(sh.updateZoneKeyRange('shop.ranged', {k: MinKey()}, {k: 5}, 'EU').ok === 1, 'updateZoneKeyRange');
check(sh.moveChunk('shop.ranged', {k: 1}, 'shard0').ok === 1, 'moveChunk');
check(sh.moveChunk('shop.ranged', {k: 9}, 'shard1').ok === 1, 'moveChunk');
db.getSiblingDB('shop').ranged.insertMany([{k: 1}, {k: 7}, {k: 8}]);

const status = sh.status().value;
check(status.shards.map(shard => shard._id).join() === 'local,shard0,shard1', 'shards');
check(status.shards[1].tags.join() === 'EU', 'tags');
check(Object.keys(status['active mongoses'][0]).length === 1, 'mongoses');
check(status.balancer['Currently enabled'] === 'no', 'the balancer is off');
check(JSON.stringify(status.balancer['Migration Results for the last 24 hours']) === '{"2":"Success"}', 'migrations');
const shop = status.databases.find(each => each.database._id === 'shop');
const ranged = shop.collections['shop.ranged'];
check(JSON.stringify(ranged.shardKey) === '{"k":1}' && ranged.balancing && !ranged.unique, 'key');
check(ranged.chunks.length === 2 && ranged.chunks[0]['on shard'] === 'shard0' && ranged.chunks[1]['on shard'] === 'shard1', 'chunks');
check(ranged.chunks[0].max.k === 5 && ranged.tags[0].tag === 'EU' && ranged.tags[0].max.k === 5, 'bounds');
check(shop.collections['shop.hashed'].chunkMetadata.reduce((sum, shard) => sum + shard.nChunks, 0) === 6, 'hashed');
const compound = shop.collections['shop.compound'];
check(JSON.stringify(compound.shardKey) === '{"b":1,"a":1}' && Object.keys(compound.chunks[0].min).join() === 'b,a', 'order of a shard key');
check(Object.keys(status.shards[0]).slice(0, 3).join() === '_id,host,state', 'order of fields');
const distribution = status.shardedDataDistribution.find(each => each.ns === 'shop.ranged').shards;
check(distribution.map(each => each.shardName + each.numOwnedDocuments).sort().join() === 'shard01,shard12', 'distribution');
db.printShardingStatus();

const config = db.getSiblingDB('config');
sh.disableBalancing('shop.ranged');
check(config.collections.findOne({_id: 'shop.ranged'}).noBalance === true, 'disableBalancing');
sh.enableBalancing('shop.ranged');
check(config.collections.findOne({_id: 'shop.ranged'}).noBalance === false, 'enableBalancing');
config.settings.updateOne({_id: 'chunksize'}, {$set: {value: 64}}, {upsert: true});
check(config.settings.findOne({_id: 'chunksize'}).value === 64, 'chunk size');
for (const name of ['version', 'mongos', 'settings', 'databases', 'collections', 'chunks', 'tags', 'changelog', 'actionlog', 'locks', 'shards']) {
  const found = config.getCollection(name).find().toArray().length;
  check(config.getCollection(name).aggregate([{$count: 'n'}]).toArray().reduce((_, each) => each.n, 0) >= found, name);
}
check(sh.startBalancer().ok === 1 && sh.getBalancerState() && sh.isBalancerRunning().mode === 'full', 'startBalancer');
check(sh.listShards().length === 3 && !sh.isConfigShardEnabled().enabled && sh.isAutoMergerEnabled(), 'listShards');
check(db.getSiblingDB('shop').ranged.getShardDistribution().value.Totals.docs === 3, 'getShardDistribution');
check(sh.removeRangeFromZone('shop.ranged', {k: MinKey()}, {k: 5}).ok === 1 && sh.removeShardFromZone('shard0', 'EU').ok === 1, 'zones');

// Changes of the layout.
const hashed = db.getSiblingDB('shop').hashed;
hashed.insertMany([{_id: 1, k: 1}, {_id: 2, k: 2}, {_id: 3, k: 3}]);
check(sh.reshardCollection('shop.hashed', {k: 1}).ok === 1, 'reshardCollection');
check(JSON.stringify(config.collections.findOne({_id: 'shop.hashed'}).key) === '{"k":1}' && hashed.countDocuments() === 3, 'resharded');
hashed.createIndex({k: 1, _id: 1});
check(db.adminCommand({refineCollectionShardKey: 'shop.hashed', key: {k: 1, _id: 1}}).ok === 1, 'refineCollectionShardKey');
check(sh.unshardCollection('shop.hashed', 'shard1').ok === 1 && hashed.find().toArray().length === 3, 'unshardCollection');
check(sh.moveCollection('shop.hashed', 'shard0').ok === 1 && hashed.find({k: 2}).toArray().length === 1, 'moveCollection');
check(sh.shardAndDistributeCollection('shop.distributed', {k: 'hashed'}).ok === 1, 'shardAndDistributeCollection');

// The shell's other helpers.
const here = db.getSiblingDB('shop');
check(here.ranged.renameCollection('renamed').ok === 1 && here.renamed.countDocuments() === 3, 'renameCollection');
here.renamed.createIndex({z: 1, a: 1});
check(JSON.stringify(here.renamed.getIndexes().find(index => index.name === 'z_1_a_1').key) === '{"z":1,"a":1}', 'order of keys');
check(here.renamed.hideIndex('z_1_a_1').hidden_new === true && here.renamed.unhideIndex({z: 1, a: 1}).hidden_new === false, 'hideIndex');
check(here.renamed.validate().valid && here.renamed.dataSize() > 0 && here.renamed.stats().count === 3, 'validate');
check(db.serverStatus().process === 'mongos' && db.hostInfo().os.type.length > 0 && db.version() === '8.0.0', 'serverStatus');
check(db.currentOp().inprog.length > 0 && db.getSiblingDB('admin').aggregate([{$listClusterCatalog: {}}]).toArray().some(each => each.ns === 'shop.renamed'), 'currentOp');
here.createUser({user: 'shell_user', pwd: 'secret', roles: ['readWrite']});
check(here.getUser('shell_user').roles[0].role === 'readWrite' && here.getUsers().users.length > 0, 'getUser');
here.updateUser('shell_user', {roles: ['read']});
check(here.getUser('shell_user').roles[0].role === 'read', 'updateUser');
here.changeUserPassword('shell_user', 'other');
check(here.dropUser('shell_user').ok === 1 && here.getUser('shell_user') === null, 'dropUser');
print('done');
