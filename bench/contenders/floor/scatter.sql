SELECT scatter(:author);
