"""The same model, fast, and in the formats of other runtimes: `compile`, `export`, `load_exported`."""
