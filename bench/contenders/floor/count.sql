SELECT count_all();
