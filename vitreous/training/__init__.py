"""Training: recipes, the schedule, the optimisers, the loop and its state."""
