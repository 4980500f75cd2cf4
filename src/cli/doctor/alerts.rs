//! The receiver of alerts: it gets a test post, from the running service if there is one.

use pillarbox_admin::AlertsTest;
use pillarbox_admin::alerts::AlertsTested;
use pillarbox_admin::checks::Finding;
use pillarbox_admin::client::Client;
use pillarbox_alerts as alerts;
use pillarbox_config::Alerts;
use pillarbox_runtime::clock::Clock;
use pillarbox_runtime::proxy::ProxyRule;

const ABOUT: &str = "alerts";
/// The most of an answer's body that is printed.
const MAX_BODY_CHARS: usize = 200;

pub(super) async fn test(
    configured: &Alerts,
    proxy: &ProxyRule,
    service: Option<&Client>,
) -> Finding {
    let url = configured.url.origin();
    let tested = match service {
        Some(client) => client.call(&AlertsTest {}).await.map_err(|error| error.to_string()),
        None => alerts::test(&configured.url, &configured.secret, &Clock::system(), proxy)
            .await
            .map(AlertsTested::from)
            .map_err(|error| error.to_string()),
    };
    let advice = "check the receiver, its certificate and the network; the receiver verifies posts \
                  with the secret in alerts.secret_file";
    match tested {
        Ok(AlertsTested { delivered: true, answer, .. }) => {
            Finding::ok(ABOUT, format!("{url} accepted a test ({answer})"))
        }
        Ok(AlertsTested { delivered: false, answer, body }) => {
            let body: String = body.trim().chars().take(MAX_BODY_CHARS).collect();
            let said = if body.is_empty() { String::new() } else { format!(": {body}") };
            Finding::not_ok(ABOUT, format!("{url} did not accept a test ({answer}){said}"), advice)
        }
        Err(error) => Finding::not_ok(ABOUT, format!("no test could be posted: {error}"), advice),
    }
}
