-- One row per counter or idempotency key; expires is the minute since the epoch after which the row
-- can be removed.
CREATE TABLE pacegate_state (
    k text COLLATE "C" PRIMARY KEY,
    state bytea NOT NULL,
    expires integer NOT NULL
-- Leaves space for new versions of a row on its page, so that an update does not change the
-- indexes.
) WITH (fillfactor = 50);
CREATE INDEX pacegate_state_expires ON pacegate_state (expires);
