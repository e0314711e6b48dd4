-- collation: strings are compared by the rules of a language in filters, sorts and expressions.
SELECT docshard.insert_many('coll.c', ARRAY[
  '{"_id": 1, "s": "cat", "n": "10"}', '{"_id": 2, "s": "Cat", "n": "9"}', '{"_id": 3, "s": "càt", "n": "2"}',
  '{"_id": 4, "s": "dog", "n": "1"}', '{"_id": 5, "s": 7}']::jsonb[]) -> 'insertedCount' AS inserted;

-- Strength 1: letters; 2: accents, too; 3: case, too. simple compares bytes.
SELECT strength, (SELECT jsonb_agg(d -> '_id') FROM docshard.find('coll.c', '{"s": "CAT"}',
  format('{"collation": {"locale": "en", "strength": %s}, "sort": {"_id": 1}}', strength)::json) d) AS equal
  FROM generate_series(1, 3) strength;
SELECT docshard.count_documents('coll.c', '{"s": "cat"}', '{"collation": {"locale": "simple"}}');
SELECT docshard.find('coll.c', '{"s": {"$lte": "CAT"}}', '{"collation": {"locale": "en", "strength": 2}, "sort": {"_id": 1}, "projection": {"s": 1}}');
SELECT docshard.count_documents('coll.c', '{"s": {"$in": ["CAT", "DOG", 7]}}', '{"collation": {"locale": "en", "strength": 2}}');
SELECT docshard.count_documents('coll.c', '{"$expr": {"$eq": ["$s", "DOG"]}}', '{"collation": {"locale": "en", "strength": 1}}');
-- Sorts.
SELECT docshard.find('coll.c', '{"n": {"$exists": true}}', '{"sort": {"n": 1}, "projection": {"n": 1}, "collation": {"locale": "en", "numericOrdering": true}}');
SELECT docshard.find('coll.c', '{}', '{"sort": {"s": 1, "_id": 1}, "projection": {"s": 1}, "collation": {"locale": "en", "caseFirst": "upper"}}');
-- Writes.
SELECT docshard.update_many('coll.c', '{"s": "CAT"}', '{"$set": {"hit": true}}', '{"collation": {"locale": "en", "strength": 2}}');
SELECT docshard.delete_many('coll.c', '{"s": "DOG"}', '{"collation": {"locale": "en", "strength": 2}}');
SELECT docshard.count_documents('coll.c');
-- Updates search arrays with the collation.
SELECT docshard.insert_one('coll.u', '{"_id": 1, "a": ["cat", "Dog", "CAT", "ant"], "b": [{"s": "Cat"}, {"s": "dog"}]}') -> 'insertedId' AS inserted;
BEGIN;
SELECT docshard.find_one_and_update('coll.u', '{"_id": 1}', update, options::json) AS after FROM (VALUES
  ('{"$pull": {"a": "Cat"}}'::json, '{"returnDocument": "after", "collation": {"locale": "en", "strength": 2}}'),
  ('{"$addToSet": {"a": {"$each": ["DOG", "eel", "EEL"]}}}', '{"returnDocument": "after", "collation": {"locale": "en", "strength": 2}}'),
  ('{"$push": {"a": {"$each": ["bee"], "$sort": 1}}}', '{"returnDocument": "after", "collation": {"locale": "en", "strength": 2}}'),
  ('{"$pullAll": {"a": ["DOG", "Eel"]}}', '{"returnDocument": "after", "collation": {"locale": "en", "strength": 2}}'),
  ('{"$pull": {"a": "ANT"}}', '{"returnDocument": "after"}'),
  ('{"$set": {"b.$[x].n": 1}}', '{"returnDocument": "after", "arrayFilters": [{"x.s": "CAT"}], "collation": {"locale": "en", "strength": 2}}'),
  ('{"$set": {"b.$[x].n": 2}}', '{"returnDocument": "after", "arrayFilters": [{"x.s": "CAT"}]}'),
  ('{"$pull": {"b": {"s": {"$in": ["CAT", "DOG"]}}}}', '{"returnDocument": "after", "collation": {"locale": "en", "strength": 2}}')
) AS v (update, options);
ROLLBACK;
SELECT docshard.bulk_write('coll.u', '[{"updateOne": {"filter": {"a": "DOG"}, "update": {"$pull": {"a": "DOG"}, "$set": {"b.$[x]": null}}, "arrayFilters": [{"x.s": "CAT"}], "collation": {"locale": "en", "strength": 2}}}]') -> 'modifiedCount' AS modified;
SELECT docshard.run_command('coll', '{"update": "u", "updates": [{"q": {"a": "ANT"}, "u": {"$set": {"a.$": "bee"}, "$pull": {"b": {"s": "DOG"}}}, "collation": {"locale": "en", "strength": 2}}]}') -> 'nModified' AS modified;
SELECT docshard.find('coll.u');

-- String conditions do not use indexes or the shard key, which are in byte order. Conditions on numbers do.
SELECT docshard.shard_collection('coll.s', '{"k": 1}') -> 'ok' AS sharded;
SELECT docshard.insert_many('coll.s', ARRAY['{"_id": 1, "k": "A"}', '{"_id": 2, "k": "a"}', '{"_id": 3, "k": 5}']::jsonb[]) -> 'insertedCount' AS inserted;
SELECT docshard.find('coll.s', '{"k": "a"}', '{"collation": {"locale": "en", "strength": 1}, "sort": {"k": 1, "_id": 1}}');
SELECT docshard.explain('coll.s', '{"k": "a"}', '{"collation": {"locale": "en", "strength": 1}}')::jsonb -> 'keyBounds' AS bounds;
SELECT docshard.explain('coll.s', '{"k": 5}', '{"collation": {"locale": "en", "strength": 1}}')::jsonb -> 'keyBounds' AS bounds;
SELECT docshard.update_one('coll.s', '{"k": "a"}', '{"$set": {"x": 1}}', '{"collation": {"locale": "en", "strength": 1}}');

-- Refused.
SELECT docshard.find('coll.c', '{}', '{"collation": {"strength": 1}}');
SELECT docshard.find('coll.c', '{}', '{"collation": {"locale": "xx"}}');
SELECT docshard.find('coll.c', '{}', '{"collation": {"locale": "en", "strength": 9}}');
SELECT docshard.find('coll.c', '{}', '{"collation": "en"}');
