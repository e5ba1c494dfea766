"""What every service shares: positions, schemas, errors, messages, and the seams to MySQL, Redis and the store."""
