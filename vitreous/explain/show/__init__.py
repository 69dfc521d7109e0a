"""Maps on a page and in figures, always with the verdict beside them."""
