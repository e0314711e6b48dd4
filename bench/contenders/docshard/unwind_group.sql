SELECT docshard.aggregate('bench.inbox', '[{"$unwind": "$to"}, {"$group": {"_id": "$to", "n": {"$sum": 1}}}]');
