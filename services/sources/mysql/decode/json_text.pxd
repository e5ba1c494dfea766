from cutline.services.sources.mysql.decode.arena cimport Arena, put, put_from, put_hex, put_number
from cutline.services.sources.mysql.decode.codes cimport *
from cutline.services.sources.mysql.decode.decimals cimport decimal_size, put_packed_text
from cutline.services.sources.mysql.decode.memory cimport be, le, low64


cdef int put_json(Arena to, unsigned char* src, Py_ssize_t at, Py_ssize_t n) except? -1 nogil
