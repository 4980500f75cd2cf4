//! The configuration: it has been read, so what is left is what is allowed and still unwise.

use crate::admin::wire::Finding;
use crate::config::Config;

const ABOUT: &str = "configuration";

pub(super) fn look(config: &Config) -> Vec<Finding> {
    let mut findings = vec![Finding::ok(ABOUT, "can be read, and every value is allowed")];
    if !config.listen.ip().is_loopback() {
        findings.push(Finding::warning(
            ABOUT,
            format!("listen = {}: keys and messages travel there in clear", config.listen),
            "listen on the machine or a private network, behind a proxy that speaks TLS",
        ));
    }
    let endpoint = config.ses.endpoint.as_ref();
    if let Some(endpoint) = endpoint.filter(|endpoint| endpoint.scheme_str() == Some("http")) {
        let host = endpoint.host().unwrap_or_default();
        if !matches!(host, "localhost" | "[::1]") && !host.starts_with("127.") {
            findings.push(Finding::warning(
                ABOUT,
                format!("ses.endpoint = {endpoint}: messages travel there in clear"),
                "use https",
            ));
        }
    }
    if let Some(memory) = memory()
        && config.sending.max_pending_bytes > memory
    {
        findings.push(Finding::warning(
            ABOUT,
            format!(
                "sending.max_pending_bytes = {} is more than the machine's memory of {memory} bytes",
                config.sending.max_pending_bytes
            ),
            "lower it, so that a long outage ends in 503 QueueFull and not in a killed process",
        ));
    }
    findings
}

/// The machine's memory in bytes, where the system tells.
fn memory() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: usize = line.trim().strip_suffix(" kB")?.parse().ok()?;
    kib.checked_mul(1024)
}
