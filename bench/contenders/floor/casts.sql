-- jsonb's own bytes, which nothing converts or checks: of no use but to see what is left without that.
CREATE CAST (jsonb AS bytea) WITHOUT FUNCTION;
CREATE CAST (bytea AS jsonb) WITHOUT FUNCTION;
