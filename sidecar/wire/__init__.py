"""What goes over sockets: frames, connections, versions."""
