-- Casts between jsonb and its bytes, without conversion or check. They only serve to measure the cost of those.
CREATE CAST (jsonb AS bytea) WITHOUT FUNCTION;
CREATE CAST (bytea AS jsonb) WITHOUT FUNCTION;
