//! The state that all connections share.

use crate::clock::Clock;
use crate::executor::Executor;
use crate::memory::{self, Memory};
use crate::options::Options;
use crate::pool::{Identity, Pools};
use crate::router::Routers;
use crate::sasl::Context;
use crate::shares::{self, Shares};
use crate::tls;
use crate::work::Work;
use std::fs::File;
use std::io::Read;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::{TlsAcceptor, TlsConnector};

pub struct Gateway {
    pub executor: Arc<Executor>,
    pub anonymous: Option<Identity>,
    pub idle: Duration,
    hold: Duration,
    /// by address
    logins: Shares<IpAddr>,
    pub memory: Arc<Memory>,
    pub work: Work,
    pub clock: Clock,
    /// by address
    pub connections: Shares<IpAddr>,
    /// by address: connections without a login: new ones, and those by which drivers monitor
    pub unknown: Shares<IpAddr>,
    pub tls: Option<TlsAcceptor>,
    /// clients may log in by certificate
    takes_certificates: bool,
    #[cfg(feature = "fault_points")]
    pub fail_point: crate::fail_point::FailPoint,
}

impl Gateway {
    pub fn new(options: &Options) -> Result<Arc<Self>, String> {
        let mut routers = Routers::parse(&options.routers, router_tls(options)?.as_ref())?;
        if let Some(file) = &options.router_password_file {
            let text = secret_file(file).map_err(|error| format!("--router-password-file: {file}: {error}"))?;
            routers.password = text.lines().next().map(|line| line.as_bytes().to_vec());
        }
        let pools = Pools::new(options.pool_size, options.pool_timeout, options.hold_timeout, Arc::default());
        let tls = match (&options.certificate, &options.key, &options.client_ca) {
            (Some(certificate), Some(key), ca) => Some(tls::acceptor(certificate, key, ca.as_deref())?),
            (None, None, None) => None,
            (None, None, Some(_)) => return Err("--client-ca needs --certificate and --key".to_owned()),
            _ => return Err("--certificate and --key belong together".to_owned()),
        };
        let anonymous = options.anonymous_role.clone();
        let executor = Executor::new(routers, pools, options.transaction_lifetime, anonymous.clone());
        Ok(Arc::new(Self {
            executor: Arc::new(executor),
            anonymous: anonymous.map(|role| Identity { role, generation: None }),
            idle: options.idle_timeout,
            hold: options.hold_timeout,
            logins: Shares::new(options.max_logins, options.max_logins.div_ceil(2)),
            memory: Arc::new(memory::new(options.message_memory)),
            work: Work::new(),
            clock: Clock::default(),
            connections: Shares::new(options.max_connections, options.max_connections.div_ceil(2)),
            unknown: Shares::new(options.max_unauthenticated, options.max_unauthenticated.div_ceil(2)),
            tls,
            takes_certificates: options.client_ca.is_some(),
            #[cfg(feature = "fault_points")]
            fail_point: crate::fail_point::FailPoint::default(),
        }))
    }

    pub fn sasl(&self, client: IpAddr) -> Context<'_> {
        Context {
            client: shares::network(client),
            routers: &self.executor.routers,
            pools: &self.executor.pools,
            logins: &self.logins,
            takes_certificates: self.takes_certificates,
            hold: self.hold,
        }
    }
}

/// How to connect to routers by TLS; None if that is not configured.
fn router_tls(options: &Options) -> Result<Option<TlsConnector>, String> {
    let own = match (&options.router_certificate, &options.router_key) {
        (Some(certificate), Some(key)) => {
            let secret = secret_file(key).map_err(|error| format!("--router-key: {key}: {error}"))?;
            Some((certificate.as_str(), secret))
        }
        (None, None) => None,
        _ => return Err("--router-certificate and --router-key belong together".to_owned()),
    };
    match (&options.router_ca, own) {
        (Some(ca), own) => tls::connector(ca, own).map(Some),
        (None, Some(_)) => Err("--router-certificate needs --router-ca".to_owned()),
        (None, None) => Ok(None),
    }
}

/// Reads a file with a secret, which other users of the machine must not be able to read, as PostgreSQL demands of a server's
/// key. If root owns the file, its group may read it.
fn secret_file(path: &str) -> Result<String, String> {
    let mut file = File::open(path).map_err(|error| error.to_string())?;
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    let others = if metadata.uid() == 0 { 0o037 } else { 0o077 };
    if metadata.is_file() && metadata.mode() & others != 0 {
        let mode = metadata.mode() & 0o777;
        return Err(format!(
            "other users have access (mode {mode:04o}); it must be 0600 or less, or 0640 or less if root owns it"
        ));
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(|error| error.to_string())?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, remove_file, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_password_that_others_can_read_is_refused() {
        let path = std::env::temp_dir().join(format!("docshard-gateway-password-{}", std::process::id()));
        write(&path, "secret\n").unwrap();
        let read = |mode: u32| {
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            secret_file(path.to_str().unwrap())
        };
        assert_eq!((read(0o600), read(0o400)), (Ok("secret\n".to_owned()), Ok("secret\n".to_owned())));
        for mode in [0o604, 0o644, 0o620, 0o602] {
            let refused = read(mode).unwrap_err();
            assert!(refused.contains(&format!("mode {mode:04o}")), "{refused}");
        }
        let is_root = std::fs::metadata(&path).unwrap().uid() == 0;
        assert_eq!(read(0o640).is_ok(), is_root);
        remove_file(&path).unwrap();
    }
}
