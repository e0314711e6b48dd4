SELECT docshard.count_documents('bench.inbox', '{"likes": {"$gte": 40}}');
