"""Terms, derivatives and distances that several methods share."""
