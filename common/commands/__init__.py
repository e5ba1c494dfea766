"""Commands of people: the rules by which each makes sense or is refused."""
