"""The ground floor's HTTP: one server, and the port for probes and metrics."""
