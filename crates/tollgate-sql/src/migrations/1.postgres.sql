-- One row per counter or idempotency key; expires is the minute since the epoch after which the row is not needed any more.
CREATE TABLE tollgate_state (
    k text COLLATE "C" PRIMARY KEY,
    state bytea NOT NULL,
    expires integer NOT NULL
);
CREATE INDEX tollgate_state_expires ON tollgate_state (expires);
