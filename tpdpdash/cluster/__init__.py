"""What it is trained on: ClusterSpec, the catalogue of devices and links, and what NVML finds here."""
