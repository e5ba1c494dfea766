# The constants of scanner.py for the compiler, so that it compares events with literals. scanner.py has the same names
# for the interpreter (tests/unit/services/sources/test_binlog.py compares them); event_types.py names the types.

cdef enum:
    _GO = 0
    _NEED = 1
    _EVENT = 2
    _FULL = 3
    _ENDED = 4
    _FAULT = 5
    _SERVER_MESSAGE = 6
    _FULL_TAKEN = 7
    _STOPPED = 8
    _INSIDE = 28
    _QUERY = 2
    _ROTATE = 4
    _FORMAT_DESCRIPTION = 15
    _XID = 16
    _TABLE_MAP = 19
    _PRE_GA_WRITE_ROWS = 20
    _WRITE_ROWS_V1 = 23
    _DELETE_ROWS_V1 = 25
    _WRITE_ROWS = 30
    _DELETE_ROWS = 32
    _HEARTBEAT = 27
    _HEARTBEAT_V2 = 41
    _ROWS_QUERY = 29
    _GTID = 33
    _ANONYMOUS_GTID = 34
    _GTID_TAGGED = 42
    _PREVIOUS_GTIDS = 35
    _PARTIAL_UPDATE_ROWS = 39
    _TRANSACTION_PAYLOAD = 40
    _ANNOTATE_ROWS = 160
    _MARIADB_GTID = 162
    _GTID_LIST = 163
    _WRITE_ROWS_COMPRESSED_V1 = 166
    _DELETE_ROWS_COMPRESSED = 171
    _ARTIFICIAL_FLAG = 32
    _HEADER = 19
    _LOGICAL_TIMESTAMP = 2
    _NO_TABLE = 16777215
    _STANDALONE = 1
    _GROUP_COMMIT_ID = 2
    _DDL = 32
    _PREPARED_XA = 64
    _START_OR_ROLLBACK_ALTER = 10
    _FULL_PACKET = 16777215
