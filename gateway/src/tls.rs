//! TLS: to clients with the gateway's certificate, and to routers, whose certificates are verified.

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::sync::Arc;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

fn certificates(path: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    read.map_err(|error| format!("{path}: {error}"))
}

/// Accepts clients with a certificate (and those between it and an authority) and its key, in PEM files.
pub fn acceptor(certificate: &str, key: &str) -> Result<TlsAcceptor, String> {
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| format!("{key}: {error}"))?;
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_no_client_auth()
        .with_single_cert(certificates(certificate)?, private)
        .map_err(|error| format!("{certificate}: {error}"))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Connects to servers whose certificates these authorities have signed, for the host's name.
pub fn connector(ca: &str) -> Result<TlsConnector, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca)? {
        roots.add(certificate).map_err(|error| format!("{ca}: {error}"))?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}
