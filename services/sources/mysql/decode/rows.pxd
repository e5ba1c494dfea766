# Compile-time constants of rows.py, which has the same numbers for the interpreter (a unit test compares them).
# Below them what frames.py takes by C.
# layout of a built column | plan of a built column | plan of a source column | how a value is read | how a call ended

cdef enum:
    L_BIT = 0
    L_I8 = 1
    L_I32 = 4
    L_I64 = 8
    L_I128 = 16
    L_VAR = 32

    C_LAYOUT = 0
    C_VALID = 1
    C_FIX = 2
    C_OFFS = 3
    C_DATA = 4
    C_END = 5
    C_STRIDE = 8

    S_KIND = 0
    S_DEST = 1
    S_SIZE = 2
    S_PREFIX = 3
    S_ARG = 4
    S_ARG2 = 5
    S_STRIP = 6
    S_KEY = 7
    S_KEY_AT = 8
    S_KEY_N = 9
    S_STRIDE = 10

    K_BYTES = 0
    K_DECIMAL = 1
    K_DECIMAL_WIDE = 2
    K_DATE = 3
    K_DATETIME = 4
    K_TIME = 5
    K_BIT1 = 6
    K_VECTOR = 7
    K_LE_SIGNED = 8
    K_LE_UNSIGNED = 9
    K_LE_U64 = 10
    K_COPY = 11
    K_YEAR = 12
    K_BIN_DATE = 13
    K_BIN_DATETIME = 14
    K_BIN_TIMESTAMP = 15
    K_BIN_TIME = 16
    K_BIN_DECIMAL = 17
    K_BIN_DECIMAL_WIDE = 18
    K_TABLE = 19
    K_UTF16 = 20
    K_UTF32 = 21
    K_CODEC = 22
    K_ENUM = 23
    K_SET = 24
    K_PAD = 25
    K_JSON = 26
    K_UUID = 27
    K_INET6 = 28
    K_INET4 = 29
    K_PAIRS = 30
    K_COMPRESSED = 31
    K_BOOLEAN = 32
    K_YEAR_2 = 33

    OK = 0
    FULL = 1
    CORRUPT = 2
    KEY_CHANGED = 3
    UNTOLD = 4

    M_OP = 0
    M_SEQ = 1
    M_FILE = 2
    M_POS = 3
    M_ROW = 4
    M_GTID = 5
    M_TS = 6
    M_COUNT = 7

    OP_INSERT = 0
    OP_UPDATE = 1
    OP_DELETE = 2
    OP_BEFORE = 3
    OP_TRUNCATE = 4


cdef class Place:
    cdef public long long seq
    cdef public long long row
    cdef public long long pos
    cdef public long long made
    cdef public long long most
    cdef str _file
    cdef long long _file_number
    cdef bytes _gtid  # empty if it has none
    cdef long long _number  # behind `_gtid`, if not below 0
    cdef long long _transaction  # its number here: a decoder that sees a new one notes its GTID
    cdef long long _ts

    cpdef transaction(self, str gtid, long long ts, long long number=*)


cdef long long decode(object decoder, unsigned char* p, Py_ssize_t size, int event_type, long long first, long long last) except? -2
