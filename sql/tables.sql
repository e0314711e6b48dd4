-- Foreign tables over collections. The wrapper's server has no address: it stands for this cluster. Who may create foreign tables is
-- granted by USAGE on it; reading and writing one needs rights on its collection.
CREATE FUNCTION docshard_internal.fdw_handler() RETURNS fdw_handler STRICT LANGUAGE c AS 'MODULE_PATHNAME', 'fdw_handler_wrapper';
CREATE FOREIGN DATA WRAPPER docshard HANDLER docshard_internal.fdw_handler VALIDATOR docshard_internal.fdw_validator;
CREATE SERVER docshard FOREIGN DATA WRAPPER docshard;
COMMENT ON FOREIGN DATA WRAPPER docshard IS 'docshard: collections as tables';
COMMENT ON SERVER docshard IS 'docshard: the collections of this cluster';
