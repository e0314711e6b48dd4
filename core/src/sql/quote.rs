//! Quotes names and options that cannot be parameters of a statement.

/// Quotes a name.
pub fn quote_ident(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Quotes a text, independently of `standard_conforming_strings`.
pub fn quote_literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    if quoted.contains('\\') { format!("E'{}'", quoted.replace('\\', "\\\\")) } else { format!("'{quoted}'") }
}

/// Returns a statement that revokes the privileges which ALTER DEFAULT PRIVILEGES has granted on a new table.
pub fn only_owner(table: &str) -> String {
    format!(
        "DO $revoke$ DECLARE granted record; BEGIN \
           FOR granted IN SELECT DISTINCT a.grantee FROM pg_catalog.pg_class c, pg_catalog.aclexplode(c.relacl) a \
             WHERE c.oid OPERATOR(pg_catalog.=) {}::pg_catalog.regclass AND a.grantee OPERATOR(pg_catalog.<>) c.relowner \
           LOOP EXECUTE pg_catalog.format('REVOKE ALL ON TABLE {table} FROM %s CASCADE', \
             CASE granted.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(granted.grantee)) END); \
           END LOOP; END $revoke$; ",
        quote_literal(table)
    )
}
