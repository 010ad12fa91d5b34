-- One row per counter or idempotency key; expires is the minute since the epoch after which the row is not needed any more.
CREATE TABLE pacegate_state (
    k text COLLATE "C" PRIMARY KEY,
    state bytea NOT NULL,
    expires integer NOT NULL
-- Room for new versions of a row on its own page: an update then leaves the indexes alone.
) WITH (fillfactor = 50);
CREATE INDEX pacegate_state_expires ON pacegate_state (expires);
