-- One row per counter or idempotency key; expires is the minute since the epoch after which the row
-- can be removed.
CREATE TABLE IF NOT EXISTS pacegate_state (
    k varbinary(640) NOT NULL PRIMARY KEY,
    state mediumblob NOT NULL,
    expires integer NOT NULL,
    KEY pacegate_state_expires (expires)
) ENGINE = InnoDB
