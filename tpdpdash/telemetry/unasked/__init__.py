"""A folder for PYTHONPATH: its sitecustomize starts the probe in a script that says nothing itself."""
