"""What a map is worth: removal curves, random weights, and the verdict with its reasons."""
