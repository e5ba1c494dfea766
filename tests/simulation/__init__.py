"""The real machines in a simulated world of crashes, lost answers and torn files; mutants that it must catch."""
