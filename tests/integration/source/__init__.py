"""Reading a real MySQL or MariaDB: connections, chunks, the binlog, types, keys, DDL."""
