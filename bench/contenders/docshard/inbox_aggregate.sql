SELECT docshard.aggregate('bench.inbox', ('[{"$match": ' || :by_recipient || '}, {"$sort": {"sent": -1}}, {"$limit": 20}]')::json);
