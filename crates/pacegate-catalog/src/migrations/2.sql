-- Verification of the audit trail. Records are keyed from here on; earlier ones cannot be verified.

CREATE TABLE IF NOT EXISTS pacegate_audit_state (
    id BIGINT NOT NULL PRIMARY KEY,
    -- The id of the key that the trail is written under; empty until the first change.
    key_id VARCHAR(64) NOT NULL,
    -- The key itself, unless it is configured outside the catalog.
    secret VARCHAR(64) NOT NULL,
    -- The MAC of the trail's two ends and the numbers of rows.
    mac VARCHAR(64) NOT NULL,
    rule_rows BIGINT NOT NULL,
    plan_rows BIGINT NOT NULL,
    user_rows BIGINT NOT NULL,
    key_rows BIGINT NOT NULL
){table};

INSERT INTO pacegate_audit_state (id, key_id, secret, mac, rule_rows, plan_rows, user_rows, key_rows)
    SELECT id, '', '', '', 0, 0, 0, 0 FROM (SELECT 1 AS id) AS one
    WHERE NOT EXISTS (SELECT 1 FROM pacegate_audit_state);

-- A keyed hash of each row that a change wrote.
CREATE TABLE IF NOT EXISTS pacegate_seals (
    kind VARCHAR(16) NOT NULL,
    subject_key VARCHAR(64) NOT NULL,
    seal VARCHAR(64) NOT NULL,
    PRIMARY KEY (kind, subject_key)
){table};
