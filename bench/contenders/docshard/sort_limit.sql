SELECT docshard.aggregate('bench.inbox', '[{"$sort": {"likes": -1, "text": 1}}, {"$limit": 20}]');
