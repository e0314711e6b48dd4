SELECT docshard.update_one('bench.inbox', :by_key, '{"$inc": {"likes": 1}}');
