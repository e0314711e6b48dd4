//! The program's arguments.

use crate::memory;
use lexopt::prelude::*;
use std::time::Duration;

pub const HELP: &str = "\
docshard-gateway serves MongoDB's wire protocol over a router of docshard.

usage: docshard-gateway --router postgresql://HOST:PORT/DATABASE [option…]

  --router STRING             a router's connection string; several are tried in their order
  --router-ca FILE            certificates of the authorities that signed the routers' certificates, for sslmode=require
  --router-certificate FILE   the gateway's certificate for routers, where their pg_hba.conf demands one (cert)
  --router-key FILE           its private key, which other users of the machine must not be able to read
  --router-password-file FILE the password of --anonymous-role, in place of one in --router, which other users of the machine can see
  --listen ADDRESS:PORT       where clients connect (127.0.0.1:27017)
  --certificate FILE          the gateway's certificate: clients must use TLS
  --key FILE                  its private key
  --client-ca FILE            certificates of the authorities that signed clients' certificates, for MONGODB-X509
  --anonymous-role ROLE       the role of clients that do not log in; without it they are refused
  --pool-size N               the most connections to the router (40)
  --pool-timeout SECONDS      how long a command waits for one of them (30)
  --transaction-lifetime SECONDS
                              after this time a transaction is aborted (60)
  --hold-timeout SECONDS      how long logins and commands wait for a router that restarts or fails over (10)
  --max-connections N         the most clients, half of them of one address (10000)
  --max-unauthenticated N     the most clients that have not logged in, monitoring connections included, half of them of one address (5000)
  --max-logins N              the most logins at a time, each of which has a connection to the router, half of them of one address (16)
  --message-memory MIB        the most memory of all messages together, of which a role has at most half (512)
  --idle-timeout SECONDS      after this time without a message a client is disconnected (1800)
  --extension-version VERSION the version of the server's extension: another one than the gateway's is refused
  --until-eof                 ends when its standard input does
  --version, --help
";

#[derive(Debug)]
pub struct Options {
    pub routers: Vec<String>,
    pub router_ca: Option<String>,
    pub router_certificate: Option<String>,
    pub router_key: Option<String>,
    pub router_password_file: Option<String>,
    pub listen: String,
    pub certificate: Option<String>,
    pub key: Option<String>,
    pub client_ca: Option<String>,
    pub anonymous_role: Option<String>,
    pub pool_size: usize,
    pub pool_timeout: Duration,
    pub transaction_lifetime: Duration,
    pub hold_timeout: Duration,
    pub max_connections: usize,
    pub max_unauthenticated: usize,
    pub max_logins: usize,
    /// in MiB
    pub message_memory: usize,
    pub idle_timeout: Duration,
    pub extension_version: Option<String>,
    pub until_eof: bool,
}

/// What the arguments ask for.
#[derive(Debug)]
pub enum Wanted {
    Serve(Box<Options>),
    Text(String),
}

/// The largest count that an option takes.
const MAX_COUNT: usize = 1_000_000;

pub fn parse(arguments: impl IntoIterator<Item = std::ffi::OsString>) -> Result<Wanted, String> {
    let mut options = Options {
        routers: Vec::new(),
        router_ca: None,
        router_certificate: None,
        router_key: None,
        router_password_file: None,
        listen: "127.0.0.1:27017".to_owned(),
        certificate: None,
        key: None,
        client_ca: None,
        anonymous_role: None,
        pool_size: 40,
        pool_timeout: Duration::from_secs(30),
        transaction_lifetime: Duration::from_secs(60),
        hold_timeout: Duration::from_secs(10),
        max_connections: 10_000,
        max_unauthenticated: 5_000,
        max_logins: 16,
        message_memory: 512,
        idle_timeout: Duration::from_secs(1800),
        extension_version: None,
        until_eof: false,
    };
    let mut parser = lexopt::Parser::from_args(arguments);
    let text =
        |parser: &mut lexopt::Parser| parser.value().and_then(ValueExt::string).map_err(|error| error.to_string());
    let count = |parser: &mut lexopt::Parser, name: &str| {
        let number = parser.value().and_then(|value| value.parse::<usize>()).map_err(|error| error.to_string())?;
        if (1..=MAX_COUNT).contains(&number) {
            Ok(number)
        } else {
            Err(format!("--{name} must be from 1 to {MAX_COUNT}"))
        }
    };
    while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
        let Long(name) = argument else { return Err(argument.unexpected().to_string()) };
        let name = name.to_owned();
        let seconds = |count: usize| Duration::from_secs(count as u64);
        match name.as_str() {
            "router" => options.routers.push(text(&mut parser)?),
            "router-ca" => options.router_ca = Some(text(&mut parser)?),
            "router-certificate" => options.router_certificate = Some(text(&mut parser)?),
            "router-key" => options.router_key = Some(text(&mut parser)?),
            "router-password-file" => options.router_password_file = Some(text(&mut parser)?),
            "listen" => options.listen = text(&mut parser)?,
            "certificate" => options.certificate = Some(text(&mut parser)?),
            "key" => options.key = Some(text(&mut parser)?),
            "client-ca" => options.client_ca = Some(text(&mut parser)?),
            "anonymous-role" => options.anonymous_role = Some(text(&mut parser)?),
            "pool-size" => options.pool_size = count(&mut parser, &name)?,
            "pool-timeout" => options.pool_timeout = seconds(count(&mut parser, &name)?),
            "transaction-lifetime" => options.transaction_lifetime = seconds(count(&mut parser, &name)?),
            "hold-timeout" => options.hold_timeout = seconds(count(&mut parser, &name)?),
            "max-connections" => options.max_connections = count(&mut parser, &name)?,
            "max-unauthenticated" => options.max_unauthenticated = count(&mut parser, &name)?,
            "max-logins" => options.max_logins = count(&mut parser, &name)?,
            "message-memory" => {
                options.message_memory = count(&mut parser, &name)?;
                if options.message_memory < memory::LEAST {
                    return Err(format!("--message-memory must be at least {}", memory::LEAST));
                }
            }
            "idle-timeout" => options.idle_timeout = seconds(count(&mut parser, &name)?),
            "extension-version" => options.extension_version = Some(text(&mut parser)?),
            "until-eof" => options.until_eof = true,
            "help" => return Ok(Wanted::Text(HELP.to_owned())),
            "version" => return Ok(Wanted::Text(format!("docshard-gateway {}\n", env!("CARGO_PKG_VERSION")))),
            _ => return Err(format!("unknown option --{name}")),
        }
    }
    Ok(Wanted::Serve(Box::new(options)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(arguments: &[&str]) -> Result<Wanted, String> {
        parse(arguments.iter().map(Into::into))
    }

    #[test]
    fn every_option_of_the_help_is_taken() {
        let names = HELP.lines().filter_map(|line| line.strip_prefix("  --")?.split([' ', ',']).next());
        for name in names.filter(|name| !["version", "help", "until-eof"].contains(name)) {
            assert!(of(&[&format!("--{name}"), "700"]).is_ok(), "{name}");
        }
        assert!(matches!(of(&["--help"]), Ok(Wanted::Text(_))));
        for wrong in [
            &["--pool-size", "0"][..],
            &["--pool-size", "many"],
            &["--message-memory", "255"],
            &["--other"],
            &["router"],
            &["--listen"],
        ] {
            assert!(of(wrong).is_err(), "{wrong:?}");
        }
    }
}
