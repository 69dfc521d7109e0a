"""Studies: each measures one claim about the Vision Transformer and writes its page, figure and numbers."""
