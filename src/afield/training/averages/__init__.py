"""What is deployed of a training, one a file; `afield.training.average` says what they are."""
