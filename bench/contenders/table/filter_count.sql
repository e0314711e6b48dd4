SELECT count(*) FROM tables.inbox WHERE likes >= 40;
