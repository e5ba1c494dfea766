"""The binlog: the dump, its events, DDL, XA, and the cursor that reads them."""
