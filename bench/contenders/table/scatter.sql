SELECT doc FROM tables.inbox WHERE author = :author ORDER BY sent DESC LIMIT 20;
