//! A new configuration for the running service: what can change does, and the rest is named.

use tracing::{info, warn};

use crate::config::Config;
use crate::service::{Service, settings};

impl Service {
    /// Takes over what can change while running: all of `sending`. Where other keys differ, the
    /// log names them; they need a restart.
    pub fn reload(&mut self, new: &Config) {
        for key in self.needs_restart(new) {
            warn!(key, "this key has changed and takes effect at the next start");
        }
        let sending = new.sending.clone();
        self.outbox.budget().set_max(sending.max_pending_bytes);
        self.max_rate.send_replace(sending.max_rate);
        self.config.sending = sending;
        self.dispatcher.set_settings(settings(&self.config));
        info!("the configuration was read again");
    }

    fn needs_restart(&self, new: &Config) -> Vec<&'static str> {
        let old = &self.config;
        let request_timeout = old.sending.request_timeout != new.sending.request_timeout;
        [
            ("listen", old.listen != new.listen),
            ("operator_listen", old.operator_listen != new.operator_listen),
            ("data_dir", old.data_dir != new.data_dir),
            ("admin_socket", old.admin_socket != new.admin_socket),
            ("max_request_bytes", old.max_request_bytes != new.max_request_bytes),
            ("max_connections", old.max_connections != new.max_connections),
            ("max_reading_bytes", old.max_reading_bytes != new.max_reading_bytes),
            ("sending.request_timeout", request_timeout),
            ("ses.region", old.ses.region != new.ses.region),
            ("ses.endpoint", old.ses.endpoint != new.ses.endpoint),
            ("ses.configuration_set", old.ses.configuration_set != new.ses.configuration_set),
            ("ses.events", old.ses.events != new.ses.events),
        ]
        .into_iter()
        .filter_map(|(key, differs)| differs.then_some(key))
        .collect()
    }
}
