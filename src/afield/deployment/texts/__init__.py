"""Models that take texts: the files of their encoder, and their samples."""
