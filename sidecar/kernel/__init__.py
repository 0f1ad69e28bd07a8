"""What the kernel knows of processes, files, paths and ports, and says."""
