# The numbers of codes.py as C constants, for the compiled decoders (a unit test compares the two files).

cdef enum:
    L_BIT = 0
    L_I8 = 1
    L_I32 = 4
    L_I64 = 8
    L_I128 = 16
    L_VAR = 32

    V_NULL = 0
    V_SET = 1
    V_UNFIT = 2

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
    AMBIGUOUS = 4

    P_PAIR = -1
    P_TRIPLE = -2
    P_AMBIGUOUS = -3

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

    J_SMALL_OBJECT = 0
    J_LARGE_OBJECT = 1
    J_SMALL_ARRAY = 2
    J_LARGE_ARRAY = 3
    J_LITERAL = 4
    J_INT16 = 5
    J_UINT16 = 6
    J_INT32 = 7
    J_UINT32 = 8
    J_INT64 = 9
    J_UINT64 = 10
    J_DOUBLE = 11
    J_STRING = 12
    J_OPAQUE = 15

    T_TIMESTAMP = 7
    T_DATE = 10
    T_TIME = 11
    T_DATETIME = 12
    T_NEWDECIMAL = 246

    E_WRITE_ROWS_V1 = 23
    E_UPDATE_ROWS_V1 = 24
    E_DELETE_ROWS_V1 = 25
    E_WRITE_ROWS = 30
    E_UPDATE_ROWS = 31
    E_DELETE_ROWS = 32

    W_OK = 0
    W_EOF = 254
    W_ERR = 255
    W_MAX_BYTES = 16777215

    N_NULL = 251
    N_2_BYTES = 252
    N_3_BYTES = 253
    N_8_BYTES = 254
