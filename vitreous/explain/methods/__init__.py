"""The methods: each makes one map, and says what kind of claim such a map may support."""
