SELECT docshard.aggregate('bench.inbox', '[{"$match": {"likes": {"$gte": 10}}}, {"$group": {"_id": "$from", "likes": {"$sum": "$likes"}, "mean": {"$avg": "$likes"}}}]');
