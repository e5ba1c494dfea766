"""MySQL and MariaDB: connections, the catalogue, chunks, watermarks, the binlog and the decoders of its rows."""
