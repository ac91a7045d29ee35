"""What a method is, what an average is, the training loop, and how a model is scored."""
