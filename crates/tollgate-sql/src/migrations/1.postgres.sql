-- One row per counter or idempotency key. Under an advisory lock, because two nodes that start at once would both try to create it.
BEGIN;
SELECT pg_advisory_xact_lock(7813954320001);
CREATE TABLE IF NOT EXISTS tollgate_state (
    k text COLLATE "C" PRIMARY KEY,
    state bytea NOT NULL,
    -- The minute since the epoch after which the row is not needed any more.
    expires integer NOT NULL
);
CREATE INDEX IF NOT EXISTS tollgate_state_expires ON tollgate_state (expires);
COMMIT;
