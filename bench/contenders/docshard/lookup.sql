SELECT docshard.aggregate('bench.inbox', '[{"$limit": 10000}, {"$lookup": {"from": "people", "localField": "from", "foreignField": "user_name", "as": "author"}}]');
