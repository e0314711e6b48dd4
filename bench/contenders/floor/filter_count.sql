SELECT count_liked();
