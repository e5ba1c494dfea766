from cutline.services.sources.mysql.decode.arena cimport Arena, put, put_from, put_hex, put_number
from cutline.services.sources.mysql.decode.codes cimport *
from cutline.services.sources.mysql.decode.decimals cimport put_decimal, put_packed, put_packed_text
from cutline.services.sources.mysql.decode.json_text cimport put_json
from cutline.services.sources.mysql.decode.memory cimport be, byte_or_0, bytes_of, copy, le, signed64


cdef class ValueDecoder(Arena):
    cdef object source_plan
    cdef long long* sources  # source_plan: S_STRIDE integers a source column
    cdef Py_ssize_t source_count
    cdef list source_names
    cdef object number_table
    cdef int* numbers  # number_table: code points of character sets, and where members of ENUM and SET end
    cdef object text_table
    cdef unsigned char* texts  # text_table: the members of ENUM and SET
    cdef list codecs  # character sets that Python decodes
    cdef Py_ssize_t bad_at  # the byte and the source column being read
    cdef Py_ssize_t bad_source


cdef int store(ValueDecoder decoder, unsigned char* src, Py_ssize_t at, Py_ssize_t n, Py_ssize_t source, Py_ssize_t r) except? -1 nogil
