-- Finds decisions by endpoint. Rows from before this step have no key and are not found; retention
-- removes them.

ALTER TABLE pacegate_decision_log ADD COLUMN {if_missing} endpoint_key VARCHAR(64);

CREATE UNIQUE INDEX {index_if_missing} pacegate_decision_log_by_endpoint ON pacegate_decision_log (endpoint_key, number);
