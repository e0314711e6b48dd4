-- The type of documents.

CREATE DOMAIN docshard.document AS jsonb CHECK (docshard_internal.is_document(VALUE));
COMMENT ON DOMAIN docshard.document IS 'A document: a JSON object within MongoDB''s limits, extended types in relaxed Extended JSON';
