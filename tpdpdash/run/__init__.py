"""A run is a folder: its layout on disk, the command, starting, supervising, stopping, and the rehearsal."""
