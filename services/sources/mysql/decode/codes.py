"""The numbers that the decoders' plans, loops and arenas share.

Never compiled: compiled modules have the same numbers as C constants from codes.pxd, and a unit test compares the two.

| prefix | numbers |
|---|---|
| `L_` | how the arena lays out a column: the bytes of a value, a bit, or offsets and data |
| `V_` | a value's byte in the validity region: null, set, or null because the value fits no Arrow type |
| `C_` | fields of a column's place in the arena (`C_STRIDE` integers a column) |
| `S_` | fields of a source column's plan (`S_STRIDE` integers a column): how to read it, and into which column |
| `K_` | how a value is read (`S_KIND`); `K_BIN_` are forms that only the binlog has |
| `OK` to `AMBIGUOUS` | how decoding a value or a row ended |
| `P_` | in tables of code points: the byte begins a pair or a triple; or (only for keys) its character is ambiguous |
| `M_` | the META_FIELDS in the order of their columns behind the table's |
| `OP_` | row operations, as indexes into `OPS` |
| `J_` | types of MySQL's binary JSON |
| `T_` | field types of opaque values in JSON |
| `E_` | types of binlog events |
| `W_` | first bytes of packets, and the size of one that the next one continues |
| `N_` | first bytes of length-encoded integers; a smaller byte is the integer itself |
"""

from __future__ import annotations

from pymysql.constants import FIELD_TYPE

from cutline.common.ops import Op

L_BIT, L_I8, L_I32, L_I64, L_I128, L_VAR = 0, 1, 4, 8, 16, 32

V_NULL, V_SET, V_UNFIT = range(3)

C_LAYOUT, C_VALID, C_FIX, C_OFFS, C_DATA, C_END, C_STRIDE = 0, 1, 2, 3, 4, 5, 8
"""Layout; where validity (in bytes), values (in values), offsets (in 4 bytes) and data (in bytes) begin; end of the
data."""

S_KIND, S_DEST, S_SIZE, S_PREFIX, S_ARG, S_ARG2, S_STRIP, S_KEY, S_KEY_AT, S_KEY_N, S_STRIDE = range(11)
"""Kind; column of the arena (-1: skipped); fixed size, or bytes of the length in front; two arguments of the kind;
whether spaces at the end are stripped; whether the column is in the key; where the before-image has its key value, and
its size (-1: null).
"""

K_BYTES, K_DECIMAL, K_DECIMAL_WIDE, K_DATE, K_DATETIME, K_TIME, K_BIT1, K_VECTOR = range(8)
K_LE_SIGNED, K_LE_UNSIGNED, K_LE_U64, K_COPY, K_YEAR, K_BIN_DATE, K_BIN_DATETIME, K_BIN_TIMESTAMP = range(8, 16)
K_BIN_TIME, K_BIN_DECIMAL, K_BIN_DECIMAL_WIDE, K_TABLE, K_UTF16, K_UTF32, K_CODEC, K_ENUM, K_SET = range(16, 25)
K_PAD, K_JSON, K_UUID, K_INET6, K_INET4, K_PAIRS, K_COMPRESSED, K_BOOLEAN, K_YEAR_2 = range(25, 34)

OK, FULL, CORRUPT, KEY_CHANGED, AMBIGUOUS = range(5)
"""Done; the arena is full; the bytes are corrupt; an update changed the key; a value of the key can't be told from
others.
"""

P_PAIR, P_TRIPLE, P_AMBIGUOUS = -1, -2, -3

M_OP, M_SEQ, M_FILE, M_POS, M_ROW, M_GTID, M_TS, M_COUNT = range(8)

OP_INSERT, OP_UPDATE, OP_DELETE, OP_BEFORE, OP_TRUNCATE = range(5)
OPS = tuple(op.value for op in (Op.INSERT, Op.UPDATE, Op.DELETE, Op.BEFORE, Op.TRUNCATE))
"""The dictionary of `_op`, as plain strings: compiled code takes no subclass of `str` for one."""

J_SMALL_OBJECT, J_LARGE_OBJECT, J_SMALL_ARRAY, J_LARGE_ARRAY, J_LITERAL = range(5)
J_INT16, J_UINT16, J_INT32, J_UINT32, J_INT64, J_UINT64, J_DOUBLE, J_STRING, J_OPAQUE = *range(5, 13), 15

T_TIMESTAMP, T_DATE, T_TIME, T_DATETIME = FIELD_TYPE.TIMESTAMP, FIELD_TYPE.DATE, FIELD_TYPE.TIME, FIELD_TYPE.DATETIME
T_NEWDECIMAL = FIELD_TYPE.NEWDECIMAL

E_WRITE_ROWS_V1, E_UPDATE_ROWS_V1, E_DELETE_ROWS_V1 = 23, 24, 25
E_WRITE_ROWS, E_UPDATE_ROWS, E_DELETE_ROWS = 30, 31, 32

W_OK, W_EOF, W_ERR, W_MAX_BYTES = 0, 254, 255, 0xFFFFFF

N_NULL, N_2_BYTES, N_3_BYTES, N_8_BYTES = 251, 252, 253, 254
