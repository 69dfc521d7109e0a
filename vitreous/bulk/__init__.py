"""Many pictures: which they are, what was said of them, and the tables that it is written to."""
