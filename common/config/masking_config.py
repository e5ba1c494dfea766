"""The `masking` section of the pipeline file: where the key is by which columns are masked."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from cutline.common.config.faults import Strict, fault
from cutline.common.config.secret_places import absolute, secret_of
from cutline.common.errors import ConfigError
from cutline.common.mask_key import MaskKey


class MaskingConfig(Strict):
    """The key of `mask` in table_options, the same for all tables of the pipeline."""

    key_env: str | None = Field(
        default=None, description="environment variable that holds the key by which columns are masked"
    )
    key_file: str | None = Field(
        default=None, description="file whose first line is that key (relative to the pipeline file)"
    )

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.key_env is None) == (self.key_file is None):
            raise fault("must have one of key_env and key_file", "name the place of the key")
        return self

    def key(self) -> MaskKey:
        """The key as it is now; ConfigError if it is not there, or unfit."""
        text = secret_of("masking.key", "key", variable=self.key_env, file=self.key_file)
        try:
            return MaskKey.of_text(text or "")
        except ConfigError as error:
            place = f"the environment variable {self.key_env}" if self.key_env else f"the file {self.key_file}"
            raise ConfigError(error.cause.before(f"{place}: ")) from error

    def absolute(self, folder: Path) -> MaskingConfig:
        """The same with an absolute path; a relative one is relative to `folder`."""
        return self.model_copy(update={"key_file": absolute(self.key_file, folder)})
