"""The look that all pages and figures share."""
