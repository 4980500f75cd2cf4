//! `serve --check`: would this program start with this configuration? Opens nothing to write, and
//! listens nowhere.

use crate::{ServiceError, load_tls, postgres_server, ses_options, sqs_queue};
use pillarbox_admin::restart::{NodeDatabase, ProgramCheck};
use pillarbox_body_store::ARENA_FORMAT;
use pillarbox_config::{Config, KeepBodies, StoreConfig};
use pillarbox_runtime::clock::Clock;
use pillarbox_ses::SesClient;
use pillarbox_ses::credentials::Credentials;
use pillarbox_smtp::Security;
use pillarbox_store::{DATA_FORMAT, Store};
use pillarbox_webhooks as webhooks;

/// Checks a configuration and the data file, as a start would find them. A file that a service has
/// open is that service's to judge by the format that is returned. Needs a runtime.
pub fn check(config: &Config) -> Result<ProgramCheck, ServiceError> {
    let tls = load_tls(config)?;
    let clear =
        config.smtp.listen.filter(|address| Security::of_plain(*address, tls.as_ref()).is_none());
    if let Some(address) = clear.or(config.smtp.tls_listen.filter(|_| tls.is_none())) {
        return Err(ServiceError::SmtpInClear { address });
    }
    let resend =
        config.resend_listen.filter(|address| tls.is_none() && !address.ip().is_loopback());
    if let Some(address) = resend {
        return Err(ServiceError::ResendInClear { address });
    }
    let ses = SesClient::new(ses_options(config, Credentials::aws()), Clock::system())?;
    sqs_queue(config, &ses)?;
    if let Some(alerts) = &config.alerts {
        webhooks::check(&alerts.url, None).map_err(ServiceError::Alerts)?;
    }
    match &config.store {
        StoreConfig::Redb => {
            let directory = &config.data_dir;
            let failed = |source| ServiceError::Store { directory: directory.clone(), source };
            Store::check(directory).map_err(failed)?;
        }
        StoreConfig::Postgres(postgres) => drop(postgres_server(postgres)?),
    }
    Ok(ProgramCheck {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        data_format: DATA_FORMAT,
        arena_format: ARENA_FORMAT,
        keeps_bodies: config.sending.keep_bodies == KeepBodies::Yes,
        database: node_database(config),
        data_dir: Some(config.data_dir.clone()),
    })
}

/// The database that a configuration names, if its store is on one.
pub(super) fn node_database(config: &Config) -> Option<NodeDatabase> {
    let StoreConfig::Postgres(postgres) = &config.store else { return None };
    Some(NodeDatabase {
        hosts: postgres.hosts.iter().map(|(host, port)| format!("{host}:{port}")).collect(),
        name: postgres.database.clone(),
        node: postgres.node.clone(),
    })
}
