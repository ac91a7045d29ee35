"""What is deployed of a training, one a file; `afield.average` says what they are."""
