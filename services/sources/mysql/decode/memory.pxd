# The functions of memory.py in C, inlined into each compiled decoder. No bounds are checked.

from libc.string cimport memcpy


cdef inline void copy(unsigned char* dst, Py_ssize_t at, unsigned char* src, Py_ssize_t start, Py_ssize_t n) noexcept nogil:
    memcpy(dst + at, src + start, n)


cdef inline bytes bytes_of(unsigned char* src, Py_ssize_t at, Py_ssize_t end):
    return src[at:end]


cdef inline long long signed64(unsigned long long v) noexcept nogil:
    return <long long>v


cdef inline unsigned long long low64(unsigned long long v) noexcept nogil:
    return v


cdef inline unsigned long long low32(unsigned long long v) noexcept nogil:
    return <unsigned int>v


cdef inline unsigned long long le(unsigned char* src, Py_ssize_t at, Py_ssize_t n) noexcept nogil:
    cdef unsigned long long v = 0
    cdef Py_ssize_t i
    if n == 4:  # by far the most frequent size, and one instruction
        v = src[at] | (src[at + 1] << 8) | (src[at + 2] << 16)
        return v | (<unsigned long long>src[at + 3] << 24)
    for i in range(n):
        v = v | (<unsigned long long>src[at + i] << (8 * i))
    return v


cdef inline unsigned long long be(unsigned char* src, Py_ssize_t at, Py_ssize_t n) noexcept nogil:
    cdef unsigned long long v = 0
    cdef Py_ssize_t i
    for i in range(n):
        v = (v << 8) | src[at + i]
    return v


cdef inline unsigned int byte_or_0(unsigned char* src, Py_ssize_t at, Py_ssize_t n, Py_ssize_t i) noexcept nogil:
    return src[at + i] if i < n else 0
