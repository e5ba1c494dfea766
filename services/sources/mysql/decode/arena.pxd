from cutline.services.sources.mysql.decode.codes cimport *
from cutline.services.sources.mysql.decode.memory cimport copy, low64


cdef class Arena:
    cdef object memory  # the block
    cdef unsigned char* p8  # the block, in bytes, in integers of 4 and of 8 bytes
    cdef int* p32
    cdef long long* p64
    cdef object column_plan
    cdef long long* columns  # column_plan: C_STRIDE integers a column
    cdef Py_ssize_t column_count
    cdef list names
    cdef list types
    cdef Py_ssize_t row_count  # complete rows
    cdef Py_ssize_t capacity  # in rows
    cdef Py_ssize_t full_column  # the column whose data did not fit; -1: there were too many rows
    cdef Py_ssize_t missing_bytes
    cdef long long data_bytes  # written to columns of L_VAR since the decoder last set it to 0
    cdef Py_ssize_t out  # where the next byte of the value being written goes
    cdef Py_ssize_t end  # of the region that it goes to
    cdef unsigned long long hi  # a 128-bit integer that decimals.py builds
    cdef unsigned long long lo
    cdef long long visits  # what is left for the JSON document being written: values,
    cdef Py_ssize_t limit  # and where its text must have ended
    cdef dict unfit_counts
    cdef long long unfit_packed


cdef inline void put(Arena to, int b) noexcept nogil:
    if to.out < to.end:
        to.p8[to.out] = b
    to.out += 1


cdef inline void put_hex(Arena to, unsigned int b) noexcept nogil:
    put(to, 48 + b if b < 10 else 87 + b)


cdef inline void put_null(Arena to, Py_ssize_t c, Py_ssize_t r) noexcept nogil:
    cdef long long* q = to.columns
    cdef long long layout = q[c * C_STRIDE + C_LAYOUT]
    cdef Py_ssize_t fix = q[c * C_STRIDE + C_FIX] + r
    to.p8[q[c * C_STRIDE + C_VALID] + r] = V_NULL
    if layout == L_VAR:
        to.p32[q[c * C_STRIDE + C_OFFS] + r + 1] = to.p32[q[c * C_STRIDE + C_OFFS] + r]
    elif layout == L_I32:
        to.p32[fix] = 0
    elif layout == L_I64:
        to.p64[fix] = 0
    elif layout == L_I128:
        to.p64[2 * fix] = 0
        to.p64[2 * fix + 1] = 0
    else:
        to.p8[fix] = 0


cdef void put_from(Arena to, unsigned char* src, Py_ssize_t at, Py_ssize_t n) noexcept nogil
cdef void put_number(Arena to, unsigned long long v, int width) noexcept nogil
