"""What each service says of itself in Redis, typed; read by whoever shows it, also across versions."""
