SELECT author, sum(likes) AS likes, avg(likes) AS mean FROM tables.inbox WHERE likes >= 10 GROUP BY 1;
