//! TLS: to clients with the gateway's certificate, and to routers, whose certificates are verified.
//!
//! A client need not show a certificate. One that it shows is verified in the handshake, which fails if no authority of `--client-ca` has
//! signed it, if it has expired, or if it is not one for clients.

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::sync::Arc;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

fn certificates(path: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    read.map_err(|error| format!("{path}: {error}"))
}

fn authorities(ca: &str) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca)? {
        roots.add(certificate).map_err(|error| format!("{ca}: {error}"))?;
    }
    Ok(roots)
}

/// Accepts clients with a certificate (and those between it and an authority) and its key, in PEM files. `client_ca`: the authorities of
/// clients' certificates; None: clients are not asked for one.
pub fn acceptor(certificate: &str, key: &str, client_ca: Option<&str>) -> Result<TlsAcceptor, String> {
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| format!("{key}: {error}"))?;
    let provider = Arc::new(default_provider());
    let verifier = match client_ca {
        None => WebPkiClientVerifier::no_client_auth(),
        Some(ca) => WebPkiClientVerifier::builder_with_provider(Arc::new(authorities(ca)?), provider.clone())
            .allow_unauthenticated()
            .build()
            .map_err(|error| format!("{ca}: {error}"))?,
    };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_client_cert_verifier(verifier)
        .with_single_cert(certificates(certificate)?, private)
        .map_err(|error| format!("{certificate}: {error}"))?;
    if client_ca.is_some() {
        // A resumed session would not verify the certificate again, which may have expired.
        config.session_storage = Arc::new(NoServerSessionStorage {});
    }
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Connects to servers whose certificates these authorities have signed, for the host's name. `own`: the file of the gateway's own
/// certificate, and its key in PEM.
pub fn connector(ca: &str, own: Option<(&str, String)>) -> Result<TlsConnector, String> {
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(authorities(ca)?);
    let config = match own {
        None => config.with_no_client_auth(),
        Some((certificate, key)) => {
            let key =
                PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|error| format!("--router-key: {error}"))?;
            let chain = certificates(certificate)?;
            config.with_client_auth_cert(chain, key).map_err(|error| format!("{certificate}: {error}"))?
        }
    };
    Ok(TlsConnector::from(Arc::new(config)))
}
