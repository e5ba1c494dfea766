"""The mesh as real processes, without Spark: channels, leases, epochs, commands, where a stream begins and ends."""
