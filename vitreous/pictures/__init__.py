"""A picture on its way to the model: reading a file, its colours, and the preprocessing."""
