"""What a model is made of: its cost in closed form and measured, and the shape of every tensor on the way."""
