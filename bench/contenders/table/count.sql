SELECT count(*) FROM tables.inbox;
