"""Dual pods: rules, the simulated cluster, the real shell on the strict API server, the programs."""
