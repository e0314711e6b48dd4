SELECT docshard.find('bench.inbox', :by_author, '{"sort": {"sent": -1}, "limit": 20}');
