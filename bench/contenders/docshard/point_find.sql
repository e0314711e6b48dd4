SELECT docshard.find_one('bench.inbox', :by_key);
