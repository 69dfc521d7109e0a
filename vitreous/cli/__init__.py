"""The command line: one small module a command; torch is imported only when a command needs it."""
