"""For each rule, the program without it: whatever checks the rule must notice. `make mutants` prints the table."""
