"""The ledger of device memory: which tree of processes was promised how many bytes of which device."""
