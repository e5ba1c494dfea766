from cutline.services.sources.mysql.decode.arena cimport put_null
from cutline.services.sources.mysql.decode.codes cimport *
from cutline.services.sources.mysql.decode.memory cimport copy, le
from cutline.services.sources.mysql.decode.values cimport ValueDecoder, store


cdef class Place:
    cdef public long long seq
    cdef public long long row
    cdef public long long pos
    cdef public long long made
    cdef public long long most
    cdef str _file
    cdef long long _file_number
    cdef bytes _gtid  # empty if it has none
    cdef long long _number  # appended to _gtid unless it is below 0
    cdef long long _transaction  # counts transactions: a decoder that sees a new number notes its GTID
    cdef long long _ts

    cpdef transaction(self, str gtid, long long ts, long long number=*)


cdef long long decode(object decoder, unsigned char* p, Py_ssize_t size, int event_type, long long first, long long last) except? -2
