from cutline.services.sources.mysql.decode.arena cimport Arena, put, put_number
from cutline.services.sources.mysql.decode.codes cimport *
from cutline.services.sources.mysql.decode.memory cimport low32, low64, signed64


cpdef int decimal_size(int precision, int scale) noexcept nogil
cdef int put_decimal(Arena to, unsigned char* src, Py_ssize_t at, Py_ssize_t n, long long precision, long long scale, Py_ssize_t fix) noexcept nogil
cdef int put_packed(Arena to, unsigned char* src, Py_ssize_t at, long long precision, long long scale, Py_ssize_t fix) noexcept nogil
cdef int put_packed_text(Arena to, unsigned char* src, Py_ssize_t at, long long precision, long long scale) noexcept nogil
