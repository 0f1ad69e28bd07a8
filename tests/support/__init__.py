"""What tests of every package need: waiting for conditions, processes, servers."""
