"""What people see and type: settings, logs, tables, exit codes, names."""
