SELECT docshard.find('bench.inbox', :by_recipient, '{"sort": {"sent": -1}, "limit": 20}');
