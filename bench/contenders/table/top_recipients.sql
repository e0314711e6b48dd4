SELECT recipient, count(*) AS n FROM tables.inbox GROUP BY 1 ORDER BY n DESC LIMIT 10;
