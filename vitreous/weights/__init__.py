"""Weight files: one module a family, each with the names both ways."""
