"""Which runs answer a question, how they are executed exactly, stored and selected."""
