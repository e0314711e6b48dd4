SELECT docshard.count_documents('bench.inbox');
