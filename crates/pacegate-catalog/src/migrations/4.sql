-- Overrides for identities other than users. Rows of users have no dimension.

ALTER TABLE pacegate_overrides ADD COLUMN {if_missing} dimension VARCHAR(64);

CREATE UNIQUE INDEX {index_if_missing} pacegate_overrides_by_dimension ON pacegate_overrides (dimension, number);
