SELECT docshard.insert_one('bench.inbox', :doc);
