// A small blog with mongoose, as its users write it: mongoose.js URI.
const assert = require('node:assert');
const mongoose = require('mongoose');
const {Schema} = mongoose;

const userSchema = new Schema({
  name: {type: String, required: true, unique: true, trim: true},
  age: {type: Number, min: 0},
  address: {city: String, zip: String},
});
const postSchema = new Schema(
  {
    title: {type: String, required: true},
    author: {type: Schema.Types.ObjectId, ref: 'User', index: true},
    tags: {type: [String], index: true},
    comments: [{by: String, text: String, at: {type: Date, default: Date.now}}],
    rating: Schema.Types.Decimal128,
    extra: {type: Map, of: Schema.Types.Mixed},
  },
  {timestamps: true, optimisticConcurrency: true},
);
postSchema.index({author: 1, createdAt: -1});
postSchema.virtual('summary').get(function () {
  return `${this.title} (${this.comments.length})`;
});
postSchema.pre('save', function () {
  this.tags = this.tags.map(tag => tag.toLowerCase());
});

async function documents(User, Post) {
  const ann = await User.create({name: ' ann ', age: 30, address: {city: 'Oslo'}});
  assert.equal(ann.name, 'ann');
  await assert.rejects(User.create({age: 1}), mongoose.Error.ValidationError);
  await assert.rejects(User.create({name: 'ann'}), {code: 11000});
  const post = await Post.create({title: 'First', author: ann, tags: ['A', 'b'], rating: '4.5', extra: {mood: 'good'}});
  post.comments.push({by: 'bob', text: 'nice'});
  await post.save();
  const found = await Post.findById(post._id).populate('author');
  assert.equal(found.author.address.city, 'Oslo');
  assert.equal(found.summary, 'First (1)');
  assert.deepEqual([...found.tags], ['a', 'b']);
  assert.equal(found.extra.get('mood'), 'good');
  assert.equal(found.rating.toString(), '4.5');
  assert(found.comments[0].at instanceof Date && found.updatedAt >= found.createdAt);
  // Two who change the same version.
  const stale = await Post.findById(post._id);
  found.title = 'Changed';
  await found.save();
  stale.title = 'Lost';
  await assert.rejects(stale.save(), mongoose.Error.VersionError);
  await Post.updateOne({_id: post._id, 'comments.by': 'bob'}, {$set: {'comments.$.text': 'very nice'}});
  assert.equal((await Post.findOne({tags: 'a'}).lean()).comments[0].text, 'very nice');
  return ann;
}

async function queries(User, Post, ann) {
  await Post.insertMany([...Array(40).keys()].map(n => ({title: `p${n}`, author: ann._id, tags: [`t${n % 4}`]})));
  const page = await Post.find({tags: {$in: ['t1', 't2']}}).sort({title: 1}).skip(5).limit(3).select('title -_id').lean();
  assert.deepEqual(page, [{title: 'p18'}, {title: 'p2'}, {title: 'p21'}]);
  const counts = await Post.aggregate([
    {$unwind: '$tags'},
    {$group: {_id: '$tags', n: {$sum: 1}}},
    {$match: {_id: /^t/}},
    {$sort: {_id: 1}},
  ]);
  assert.deepEqual(counts.map(each => each.n), [10, 10, 10, 10]);
  let seen = 0;
  for await (const post of Post.find().cursor({batchSize: 7})) seen += post.title ? 1 : 0;
  assert.equal(seen, 41);
  assert.equal(await Post.countDocuments({author: ann._id}), 41);
  assert.equal((await User.findOneAndUpdate({name: 'cy'}, {$setOnInsert: {age: 5}}, {upsert: true, new: true})).age, 5);
}

async function transaction(User, Post) {
  const write = fails => mongoose.connection.transaction(async session => {
    const [user] = await User.create([{name: fails ? 'dropped' : 'kept'}], {session});
    await Post.create([{title: 'of a transaction', author: user}], {session});
    if (fails) throw new Error('no');
  });
  await assert.rejects(write(true), {message: 'no'});
  await write(false);
  assert.equal(await User.countDocuments({name: 'dropped'}), 0);
  assert.equal(await Post.countDocuments({title: 'of a transaction'}), 1);
}

// The indexes follow the schema, and a second call changes nothing.
async function indexes(User, Post) {
  await User.collection.createIndex({age: 1});
  assert.deepEqual((await User.diffIndexes()).toDrop, ['age_1']);
  assert.deepEqual(await User.syncIndexes(), ['age_1']);
  for (const model of [User, Post]) {
    assert.deepEqual(await model.syncIndexes(), []);
    assert.deepEqual(await model.diffIndexes(), {toDrop: [], toCreate: []});
  }
  assert.deepEqual((await Post.listIndexes()).map(index => index.name).sort(), ['_id_', 'author_1', 'author_1_createdAt_-1', 'tags_1']);
}

async function main() {
  await mongoose.connect(process.argv[2], {dbName: 'blog'});
  const User = mongoose.model('User', userSchema);
  const Post = mongoose.model('Post', postSchema);
  await Promise.all([User.init(), Post.init()]);
  const ann = await documents(User, Post);
  await queries(User, Post, ann);
  await transaction(User, Post);
  await indexes(User, Post);
  await mongoose.disconnect();
  console.log('done');
}

main().catch(error => {
  console.error(error);
  process.exit(1);
});
