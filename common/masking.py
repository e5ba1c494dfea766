"""Masking: keyed hashes in the place of values, so that equal values stay equal and can be joined (pure).

A hash is keyed BLAKE2b (RFC 7693) of the value's text in UTF-8, 16 bytes in hexadecimal: 32 characters. Without the key
nobody can compute the hash of a guessed value; with it anybody can, in every language that has BLAKE2b:

    hashlib.blake2b(text.encode(), key=key, digest_size=16).hexdigest()

The text of a number is its decimal form, of a DECIMAL with all digits behind its point, of a boolean `true` or `false`,
of a TIME its microseconds, of other dates and times as `2026-01-31 12:00:00.000000` (TIMESTAMP with a `Z` behind it);
binary values are hashed as they are. Null stays null. Equal values of one type have equal hashes in all tables and
pipelines with the same key; text is compared by its characters, whatever its collation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cutline.common.causes import Cause, Code
from cutline.common.errors import ConfigError, NextGeneration, SourceLost
from cutline.common.mask_key import HASH_CHARACTERS, MaskKey
from cutline.common.schema import TableSchema

_SAMPLE = 1000
"""Of so many values it is seen whether most come more than once; then only the distinct ones are hashed."""


def hashes(key: MaskKey, values: pa.Array) -> pa.Array:
    """The hashes of a column's values, as text."""
    texts = _texts(values)
    some = texts.slice(0, _SAMPLE)
    if 2 * pc.count_distinct(some).as_py() > len(some):
        return _hashes(key, texts)
    distinct = texts.dictionary_encode()
    return pc.take(_hashes(key, distinct.dictionary), distinct.indices)


def _hashes(key: MaskKey, texts: pa.Array) -> pa.Array:
    known = pc.drop_null(texts)
    ends = np.arange(len(known) + 1, dtype=np.int32) * HASH_CHARACTERS
    buffers = pa.py_buffer(ends), pa.py_buffer(key.hashes(known.to_pylist()).encode())
    made = pa.StringArray.from_buffers(len(known), *buffers)
    if len(known) == len(texts):
        return made
    valid = texts.is_valid()
    at = pc.subtract(pc.cumulative_sum(valid.cast(pa.int64())), 1)
    return made.take(pc.if_else(valid, at, None))


def unfit_mask(schema: TableSchema, chunk_key: Collection[str] = ()) -> Cause | None:
    """Why a table can't be masked as its rule says, None if it can: a column is not there, or belongs to a key, whose
    values Cutline's messages and file names of chunks have."""
    about = f"mask in table_options of {schema.table_id}"
    for name in schema.shape.mask if schema.shape is not None else ():
        place = schema.place(name)
        if place is None:
            return Cause(Code.RULE, f"{about} has {name!r}, which is no column of it", "correct it")
        if schema.columns[place].name in (*schema.key, *chunk_key):
            return Cause(
                Code.RULE, f"{about} has {name!r}, by whose values rows are found and read", "mask other columns"
            )
    return None


def lacks_masked(schema: TableSchema) -> Cause | None:
    """Why rows of this schema must not be delivered, nor the lake's table follow it, None if they may: a column that is
    to be masked has another name in it, so that its values would come in clear, into a column that has hashes."""
    for name in schema.shape.mask if schema.shape is not None else ():
        if not schema.has(name):
            sentence = f"{schema.table_id} has no column {name} there, which is to be masked, so it is read again"
            return Cause(Code.CHANGED, sentence)
    return None


class Masks:
    """The keys of one process: each as the place of the key had it when it was first needed."""

    def __init__(self, load: Callable[[], MaskKey | None]) -> None:
        """`load` gives the key as it is now, None if the pipeline has none."""
        self._load = load
        self._keys: dict[str, MaskKey] = {}

    def masked(self, batch: pa.RecordBatch, schema: TableSchema) -> pa.RecordBatch:
        """A batch that was decoded by `schema.clear`, as `schema` has it. NextGeneration if a column that is to be
        masked has another name in it; SourceLost if this process has another key, or none."""
        shape = schema.shape
        if shape is None or not shape.mask:
            return batch
        if (cause := lacks_masked(schema)) is not None:
            raise NextGeneration(cause, schema.table_id)
        key = self._key(schema.table_id, str(shape.mask_key))
        for at, field in enumerate(batch.schema):
            if field.name in schema.masked:
                batch = batch.set_column(at, schema.arrow.field(field.name), hashes(key, batch.column(at)))
        return batch

    def _key(self, table_id: str, fingerprint: str) -> MaskKey:
        try:
            if fingerprint not in self._keys and (key := self._load()) is not None:
                self._keys[key.fingerprint] = key
        except ConfigError as error:  # tables without a mask go on
            cause = error.cause.before(f"A reader can't mask {table_id}: ").advised("then retry the table")
            raise SourceLost(cause, table_id) from error
        if fingerprint not in self._keys:
            cause = Cause(
                Code.RULE,
                f"{table_id} is masked by another key than the one that a reader has",
                "give the enumerator and all readers one key (masking in the pipeline file), then retry the table",
            )
            raise SourceLost(cause, table_id)
        return self._keys[fingerprint]


NO_MASKS = Masks(lambda: None)
"""Of who reads no masked table."""


def _texts(values: pa.Array) -> pa.Array:
    """The bytes of each value's text."""
    kind = values.type
    if pa.types.is_binary(kind):
        return values
    if pa.types.is_list(kind):  # VECTOR: its numbers as they are in memory
        texts = [row.values.to_numpy().tobytes() if row.is_valid else None for row in values]
        return pa.array(texts, pa.binary())
    if pa.types.is_decimal(kind):  # Arrow prints small ones with an exponent
        texts = [None if value is None else format(value, "f").encode() for value in values.to_pylist()]
        return pa.array(texts, pa.binary())
    if pa.types.is_floating(kind):
        values = pc.add(values, pa.scalar(0, kind))  # -0 and 0 are equal
    return values.cast(pa.string()).cast(pa.binary())
