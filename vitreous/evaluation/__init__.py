"""How good a classifier is: its outputs over a data set, metrics, and the report to look at."""
