"""A run is a folder: build its command, start it, supervise it, stop it, and read it back."""
