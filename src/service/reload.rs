//! A new configuration for the running service: what can change does, and the rest is named.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::watch;
use tracing::{error, info, warn};

use crate::{Service, memory_limit, settings};
use pillarbox_alerts::Alerts;
use pillarbox_api::Budgets;
use pillarbox_config::{self as config, Config, MaxRate};
use pillarbox_http::tls::{Tls, TlsError, TlsFiles};
use pillarbox_ses::SesClient;

/// TLS of the client listener, if the configuration has any.
pub fn load_tls(config: &Config) -> Result<Option<Arc<Tls>>, TlsError> {
    config.tls.as_ref().map(|tls| Tls::load(&files(tls)).map(Arc::new)).transpose()
}

fn files(tls: &config::Tls) -> TlsFiles {
    TlsFiles { certificate: tls.certificate.clone(), key: tls.key.clone() }
}

/// Parts that a new configuration changes besides the queue and the dispatcher.
#[derive(Debug)]
pub(super) struct Changeable {
    pub(super) max_rate: watch::Sender<MaxRate>,
    pub(super) budgets: Budgets,
    pub(super) ses: SesClient,
    /// Certificate of the client listener, if it speaks TLS.
    pub(super) tls: Option<Arc<Tls>>,
    /// Budget of pending messages by the configuration, in bytes.
    pub(super) configured_pending_bytes: Arc<AtomicUsize>,
    pub(super) alerts: Arc<Alerts>,
}

impl Service {
    /// Loads the AWS credentials from their sources anew, and asks SES whether they are good.
    pub fn reload_credentials(&self) {
        self.changeable.ses.reload_credentials();
        // Who waits for a change of the rate asks SES at once.
        self.changeable.max_rate.send_modify(|_| {});
        info!("the AWS credentials are loaded again");
    }

    /// Takes over what can change while running: all of `sending`, the budgets of bodies and
    /// responses, the certificate, from its files anew, and the receiver of alerts. If other keys
    /// differ, the log names them; they need a restart.
    pub fn reload(&mut self, new: &Config) {
        for key in self.needs_restart(new) {
            warn!(key, "this key has changed and takes effect at the next start");
        }
        self.reload_tls(new);
        self.reload_alerts(new);
        let sending = new.sending.clone();
        self.queue.budget().set_max(memory_limit::pending_bytes(new));
        let configured = &self.changeable.configured_pending_bytes;
        configured.store(sending.max_pending_bytes, Ordering::Relaxed);
        self.changeable.budgets.bodies.set_max(new.max_reading_bytes);
        self.changeable.budgets.responses.set_max(new.max_writing_bytes);
        self.config.max_reading_bytes = new.max_reading_bytes;
        self.config.max_writing_bytes = new.max_writing_bytes;
        self.changeable.max_rate.send_replace(sending.max_rate);
        self.config.sending = sending;
        self.dispatcher.set_settings(settings(&self.config));
        info!("the configuration was read again");
    }

    /// New handshakes are made with what the files hold now; connections stay as they are.
    fn reload_tls(&mut self, new: &Config) {
        let (Some(tls), Some(configured)) = (&self.changeable.tls, &new.tls) else { return };
        match tls.replace(&files(configured)) {
            Ok(()) => self.config.tls = Some(configured.clone()),
            Err(error) => {
                error!(%error, "the new certificate cannot be used; the old one stays in use until this is corrected");
            }
        }
    }

    /// Alerts that wait go to the new receiver.
    fn reload_alerts(&mut self, new: &Config) {
        if self.config.alerts == new.alerts {
            return;
        }
        let receiver = new.alerts.as_ref().map(|alerts| (&alerts.url, &alerts.secret));
        match self.changeable.alerts.set_receiver(receiver, &self.config.webhooks.proxy) {
            Ok(()) => self.config.alerts.clone_from(&new.alerts),
            Err(error) => {
                error!(%error, "alerts go to the old receiver until this is corrected");
            }
        }
    }

    fn needs_restart(&self, new: &Config) -> Vec<&'static str> {
        let old = &self.config;
        let request_timeout = old.sending.request_timeout != new.sending.request_timeout;
        [
            ("listen", old.listen != new.listen),
            ("operator_listen", old.operator_listen != new.operator_listen),
            ("operator_hosts", old.operator_hosts != new.operator_hosts),
            ("the sign-in of operators", old.operator_sign_in != new.operator_sign_in),
            ("data_dir", old.data_dir != new.data_dir),
            ("admin_socket", old.admin_socket != new.admin_socket),
            ("tls", old.tls.is_some() != new.tls.is_some()),
            ("smtp", old.smtp != new.smtp),
            ("resend_api", old.resend_listen != new.resend_listen),
            ("max_request_bytes", old.max_request_bytes != new.max_request_bytes),
            ("max_connections", old.max_connections != new.max_connections),
            ("trusted_proxies", old.trusted_proxies != new.trusted_proxies),
            ("sending.request_timeout", request_timeout),
            ("sending.keep_bodies", old.sending.keep_bodies != new.sending.keep_bodies),
            ("test.capture", old.test.capture != new.test.capture),
            ("ses.region", old.ses.region != new.ses.region),
            ("ses.endpoint", old.ses.endpoint != new.ses.endpoint),
            ("ses.configuration_set", old.ses.configuration_set != new.ses.configuration_set),
            ("ses.tracking_override", old.ses.tracking_override != new.ses.tracking_override),
            ("ses.proxy", old.ses.proxy != new.ses.proxy),
            ("ses.events", old.ses.events != new.ses.events),
            ("webhooks.proxy", old.webhooks.proxy != new.webhooks.proxy),
            ("store", old.store != new.store),
        ]
        .into_iter()
        .filter_map(|(key, differs)| differs.then_some(key))
        .collect()
    }
}
