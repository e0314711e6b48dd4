SELECT doc FROM inbox WHERE author = :author ORDER BY sent DESC LIMIT 20;
