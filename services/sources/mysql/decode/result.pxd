from cutline.services.sources.mysql.decode.arena cimport put_null
from cutline.services.sources.mysql.decode.codes cimport *
from cutline.services.sources.mysql.decode.memory cimport le
from cutline.services.sources.mysql.decode.values cimport ValueDecoder, store
