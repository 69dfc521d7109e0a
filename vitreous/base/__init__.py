"""What every room stands on: errors, files, seeds, progress, processes, statistics, settings; it knows no model."""
