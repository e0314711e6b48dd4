SELECT docshard.aggregate('bench.inbox', '[{"$sortByCount": "$recipient"}, {"$limit": 10}]');
