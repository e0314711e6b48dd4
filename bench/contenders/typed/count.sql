SELECT count(*) FROM typed;
