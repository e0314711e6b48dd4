SELECT count(*) FROM inbox;
