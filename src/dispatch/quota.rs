//! The account's quota: asks SES how fast and how much the account may send, and paces sending
//! accordingly. The same question shows whether the credentials are good, before any message does.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{debug, error, info, warn};

use crate::circuit_breaker::Cause;
use crate::token_bucket::Rate;
use crate::{DailyQuota, Dispatcher, Evidence};
use pillarbox_config::MaxRate;
use pillarbox_providers::Providers;
use pillarbox_ses::SesClient;
use pillarbox_ses::account::{Account, EnforcementStatus, Sending};
use pillarbox_ses::error::CallError;

/// The rate if SES returns none and none is configured: that of a new account outside of the
/// sandbox (SES Developer Guide, "Managing your Amazon SES sending limits").
pub const SAFE_RATE: f64 = 14.0;

/// Recipients per second from which on a rate is none: SES has no word for that, and the simulator
/// says a million.
pub const NO_LIMIT: f64 = 1_000_000.0;

/// Interval between two questions about the account.
const INTERVAL: Duration = Duration::from_mins(2);
/// Interval after a question without an answer, or while calls say that the provider takes no
/// messages.
const INTERVAL_AFTER_FAILURE: Duration = Duration::from_secs(30);
/// Time from the call that shows it to the question. A short outage is over by then.
const DOUBT_PAUSE: Duration = Duration::from_secs(5);

/// Interval while there are no credentials, or AWS refuses them.
const INTERVAL_WITHOUT_CREDENTIALS: Duration = Duration::from_secs(5);

/// State of the credentials after the last answer about the account.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum AccountCheck {
    /// AWS has not been asked yet since the start.
    #[default]
    Unasked,
    /// Nothing is wrong with them, as far as is known.
    Passed,
    /// The credentials do not work.
    Failed {
        /// Kind of the fault.
        fault: AccountFault,
        /// Message of AWS, or the reason why they cannot be loaded.
        message: String,
        /// Credentials of the time before.
        before: EarlierCredentials,
    },
}

/// Credentials that this process had before a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EarlierCredentials {
    /// None that AWS took, since its start.
    None,
    /// Credentials that AWS accepted.
    Good,
}

/// Fault of the credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AccountFault {
    /// They cannot be loaded.
    CredentialsMissing,
    /// AWS does not take them: they are unknown or expired, or their signature is wrong.
    CredentialsRefused,
    /// AWS does not take the time that calls are signed with.
    ClockWrong,
    /// They are good, but may not ask about the account. Sending does not depend on that.
    AccessDenied,
}

impl AccountFault {
    /// Every fault.
    pub const ALL: [Self; 4] =
        [Self::CredentialsMissing, Self::CredentialsRefused, Self::ClockWrong, Self::AccessDenied];

    /// Fault that an error shows, or `None` if it says nothing of the credentials.
    fn of(error: &CallError) -> Option<Self> {
        match error {
            CallError::Credentials(_) => Some(Self::CredentialsMissing),
            _ if error.refuses_credentials() => Some(Self::CredentialsRefused),
            _ if error.refuses_clock() => Some(Self::ClockWrong),
            _ if error.denies_access() => Some(Self::AccessDenied),
            _ => None,
        }
    }

    /// A name for programs, as in metrics.
    pub const fn code(self) -> &'static str {
        match self {
            Self::CredentialsMissing => "credentials_missing",
            Self::CredentialsRefused => "credentials_refused",
            Self::ClockWrong => "clock_wrong",
            Self::AccessDenied => "account_access_denied",
        }
    }

    /// Meaning, and what to do.
    pub const fn explained(self) -> (&'static str, &'static str) {
        match self {
            Self::CredentialsMissing => (
                "Nothing can be sent: there are no AWS credentials to sign with",
                "Provide credentials, then send SIGHUP. If they are in the environment or in \
                 /etc/pillarbox/aws, restart instead: systemctl restart pillarbox. Messages wait \
                 meanwhile. Check with: pillarbox doctor --config FILE",
            ),
            Self::CredentialsRefused => (
                "Nothing can be sent: AWS refuses the credentials",
                "Replace them, then send SIGHUP. If they are in the environment or in \
                 /etc/pillarbox/aws, restart instead: systemctl restart pillarbox. Messages wait \
                 meanwhile. Check with: pillarbox doctor --config FILE",
            ),
            Self::ClockWrong => (
                "Nothing can be sent: AWS refuses calls because this machine's clock is wrong",
                "Set the clock and keep it right, with chrony or systemd-timesyncd; sending then \
                 continues automatically. Messages wait meanwhile. Check with: pillarbox doctor \
                 --config FILE",
            ),
            Self::AccessDenied => (
                "SES does not let pillarbox read the account's rate and quota; messages are still \
                 sent",
                "Allow ses:GetAccount. Until then, set sending.max_rate to the account's rate; this \
                 condition stays",
            ),
        }
    }

    /// True if nothing can be sent with these credentials.
    pub const fn stops_sending(self) -> bool {
        match self {
            Self::CredentialsMissing | Self::CredentialsRefused | Self::ClockWrong => true,
            Self::AccessDenied => false,
        }
    }
}

impl AccountCheck {
    /// True if nothing can be sent with these credentials.
    fn stops_sending(&self) -> bool {
        matches!(self, Self::Failed { fault, .. } if fault.stops_sending())
    }

    /// Credentials that the process has or had.
    fn credentials(&self) -> EarlierCredentials {
        match self {
            Self::Unasked => EarlierCredentials::None,
            Self::Passed => EarlierCredentials::Good,
            Self::Failed { fault, before, .. } => {
                if fault.stops_sending() {
                    *before
                } else {
                    EarlierCredentials::Good
                }
            }
        }
    }

    /// State once this answer has come.
    fn after(&self, answer: &Result<Account, CallError>) -> Self {
        let Err(error) = answer else { return Self::Passed };
        match (AccountFault::of(error), self) {
            (Some(fault), _) => {
                let (message, before) = (error.to_string(), self.credentials());
                Self::Failed { fault, message, before }
            }
            // AWS could not say: what it refused before is no better for that.
            (
                None,
                Self::Failed {
                    fault: AccountFault::CredentialsRefused | AccountFault::ClockWrong,
                    ..
                },
            ) => self.clone(),
            (None, Self::Unasked | Self::Passed | Self::Failed { .. }) => Self::Passed,
        }
    }
}

/// Logs the rate that the account is allowed.
fn log_rate(recipients_per_second: f64) {
    const MESSAGE: &str = "the account's send rate";
    if recipients_per_second < NO_LIMIT {
        info!(recipients_per_second, "{MESSAGE}");
    } else {
        info!(recipients_per_second = "no limit", "{MESSAGE}");
    }
}

/// The rate before SES was asked.
pub fn initial_rate(max_rate: MaxRate) -> Rate {
    rate(max_rate, None)
}

/// The rate within the configured one and the account's, if SES has reported it.
fn rate(max_rate: MaxRate, account: Option<f64>) -> Rate {
    Rate::PerSecond(match (max_rate, account) {
        (MaxRate::Auto, None) => SAFE_RATE,
        (MaxRate::Auto, Some(account)) => account,
        (MaxRate::PerSecond(cap), None) => cap,
        (MaxRate::PerSecond(cap), Some(account)) => cap.min(account),
    })
}

/// Refreshes the rate for as long as it is polled. `told` has SES's last report of the account's
/// rate, so that it still holds if this begins again.
pub async fn run(
    ses: SesClient,
    dispatcher: Arc<Dispatcher<Providers>>,
    mut max_rate: watch::Receiver<MaxRate>,
    told: watch::Sender<Option<f64>>,
    check: watch::Sender<AccountCheck>,
) {
    // Why the last question could not be asked.
    let mut silence = None::<String>;
    loop {
        let asked = Instant::now();
        let answer = ses.account().await;
        note(&dispatcher, &check, &answer);
        let said = evidence(&answer);
        let unreached = match &answer {
            Err(CallError::Unreachable(reason)) => Some(reason.clone()),
            Ok(_) | Err(_) => None,
        };
        match (&unreached, &silence) {
            (Some(reason), None) => warn!(reason, "SES cannot be reached"),
            (None, Some(_)) => info!("SES answers"),
            _ => {}
        }
        silence.clone_from(&unreached);
        let pause = match answer {
            Ok(account) => {
                let now = Some(account.max_send_rate);
                if told.send_replace(now) != now {
                    log_rate(account.max_send_rate);
                }
                apply(&dispatcher, &account, *max_rate.borrow_and_update());
                INTERVAL
            }
            Err(_) if check.borrow().stops_sending() => INTERVAL_WITHOUT_CREDENTIALS,
            Err(error) => {
                // An endpoint without the call must not stop sending: the rate stays.
                debug!(%error, "SES did not return the account's quota; the rate does not change");
                INTERVAL_AFTER_FAILURE
            }
        };
        dispatcher.answered(asked, said, unreached.as_deref());
        let is_doubted = dispatcher.is_doubted();
        let pause = if is_doubted { pause.min(INTERVAL_AFTER_FAILURE) } else { pause };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            // The rate and the quota may be others than before the outage.
            () = dispatcher.returned() => {}
            () = doubted(&dispatcher) => {}
            Ok(()) = max_rate.changed() => {
                // The change holds at once, even if SES cannot be asked. SES's last report still
                // holds.
                dispatcher.set_rate(rate(*max_rate.borrow_and_update(), *told.borrow()));
            }
        }
    }
}

/// Ends a while after calls have begun to say that the provider takes no messages.
async fn doubted(dispatcher: &Dispatcher<Providers>) {
    dispatcher.doubted().await;
    tokio::time::sleep(DOUBT_PAUSE).await;
}

/// Evidence of an answer about the account for and against each cause of a pause. It says nothing
/// of the set-up: `SendEmail` has permissions and a configuration set of its own.
fn evidence(answer: &Result<Account, CallError>) -> impl Fn(Cause) -> Evidence + use<> {
    let (reached, paused, exhausted) = match answer {
        Ok(account) => {
            let is_paused = account.sending == Sending::Disabled
                || account.standing == EnforcementStatus::Shutdown;
            let is_exhausted =
                account.max_24_hour_send.is_some_and(|max| max - account.sent_last_24_hours < 1.0);
            (Evidence::Against, evidence_if(is_paused), evidence_if(is_exhausted))
        }
        Err(CallError::Refused { status: ..500, .. }) => {
            (Evidence::Against, Evidence::None, Evidence::None)
        }
        Err(CallError::Unreachable(_) | CallError::Refused { .. }) => {
            (Evidence::For, Evidence::None, Evidence::None)
        }
        // Another endpoint than SES may answer in its place.
        Err(
            CallError::Credentials(_) | CallError::NotSupported { .. } | CallError::Unreadable(_),
        ) => (Evidence::None, Evidence::None, Evidence::None),
    };
    let clock_wrong = match answer {
        Ok(_) => Evidence::Against,
        Err(error) if error.refuses_clock() => Evidence::For,
        Err(_) => Evidence::None,
    };
    move |cause| match cause {
        Cause::Unreachable => reached,
        Cause::ClockWrong => clock_wrong,
        Cause::AccountPaused => paused,
        Cause::QuotaExhausted => exhausted,
        Cause::SetupFault => Evidence::None,
    }
}

fn evidence_if(holds: bool) -> Evidence {
    if holds { Evidence::For } else { Evidence::Against }
}

/// Logs the state of the credentials after an answer, if it is new.
fn note(
    dispatcher: &Dispatcher<Providers>,
    check: &watch::Sender<AccountCheck>,
    answer: &Result<Account, CallError>,
) {
    let before = check.borrow().clone();
    let now = before.after(answer);
    if now == before {
        return;
    }
    match &now {
        AccountCheck::Failed { fault, message, .. } if fault.stops_sending() => {
            error!(
                ?fault,
                message, "nothing can be sent with these AWS credentials; messages wait"
            );
        }
        AccountCheck::Failed { fault, message, .. } => {
            warn!(?fault, message, "SES did not return the account's rate and quota");
        }
        AccountCheck::Passed if before != AccountCheck::Unasked => {
            info!("the AWS credentials are good");
        }
        AccountCheck::Passed | AccountCheck::Unasked => {}
    }
    let can_send_again = before.stops_sending() && !now.stops_sending();
    check.send_replace(now);
    if can_send_again {
        dispatcher.try_again();
    }
}

fn apply(dispatcher: &Dispatcher<Providers>, account: &Account, max_rate: MaxRate) {
    dispatcher.set_rate(rate(max_rate, Some(account.max_send_rate)));
    if account.sending == Sending::Disabled {
        warn!("SES reports that sending is disabled for the account");
    }
    dispatcher.set_quota(
        account
            .max_24_hour_send
            .map(|max| DailyQuota { max, left: max - account.sent_last_24_hours }),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use pillarbox_ses::error::LoadError;

    fn refused(status: u16, name: &str) -> CallError {
        CallError::Refused { status, name: Some(name.to_owned()), message: "no".to_owned() }
    }

    fn fault(check: &AccountCheck) -> Option<AccountFault> {
        match check {
            AccountCheck::Failed { fault, .. } => Some(*fault),
            AccountCheck::Unasked | AccountCheck::Passed => None,
        }
    }

    #[test]
    fn missing_and_refused_credentials_are_told_from_everything_else() {
        use AccountFault::{AccessDenied, ClockWrong, CredentialsMissing, CredentialsRefused};
        for (error, expected) in [
            (CallError::Credentials(LoadError::None), Some(CredentialsMissing)),
            (refused(403, "ExpiredTokenException"), Some(CredentialsRefused)),
            (refused(403, "InvalidSignatureException"), Some(CredentialsRefused)),
            (refused(403, "SignatureDoesNotMatch"), Some(CredentialsRefused)),
            (refused(403, "UnrecognizedClientException"), Some(CredentialsRefused)),
            (refused(403, "MissingAuthenticationTokenException"), Some(CredentialsRefused)),
            (refused(400, "IncompleteSignature"), Some(CredentialsRefused)),
            (refused(403, "RequestTimeTooSkewed"), Some(ClockWrong)),
            (refused(400, "RequestExpired"), Some(ClockWrong)),
            (refused(403, "AccessDeniedException"), Some(AccessDenied)),
            (refused(403, "SomethingNew"), Some(AccessDenied)),
            (refused(429, "TooManyRequestsException"), None),
            (refused(500, "InternalServiceErrorException"), None),
            (CallError::Unreachable("no connection".to_owned()), None),
            (CallError::NotSupported { status: 404 }, None),
            (CallError::Unreadable("line 1".to_owned()), None),
        ] {
            let text = error.to_string();
            let check = AccountCheck::Unasked.after(&Err(error));
            assert_eq!(fault(&check), expected, "{text}");
        }
    }

    #[test]
    fn what_aws_refused_stays_refused_until_it_says_something_else() {
        let unreachable = || Err(CallError::Unreachable("no connection".to_owned()));
        let refused = AccountCheck::Unasked.after(&Err(refused(403, "ExpiredTokenException")));
        assert_eq!(refused.after(&unreachable()), refused);
        let missing = refused.after(&Err(CallError::Credentials(LoadError::None)));
        assert_eq!(fault(&missing), Some(AccountFault::CredentialsMissing));
        // What was asked was signed, so there are credentials.
        assert_eq!(missing.after(&unreachable()), AccountCheck::Passed);
    }

    #[test]
    fn credentials_that_were_lost_are_told_from_those_that_never_were() {
        let missing = || Err(CallError::Credentials(LoadError::None));
        let expired = || Err(refused(403, "ExpiredTokenException"));
        let before = |check: &AccountCheck| match check {
            AccountCheck::Failed { before, .. } => *before,
            AccountCheck::Unasked | AccountCheck::Passed => panic!("nothing is wrong"),
        };
        let never = AccountCheck::Unasked.after(&missing()).after(&expired());
        assert_eq!(before(&never), EarlierCredentials::None);
        assert_eq!(before(&AccountCheck::Passed.after(&expired())), EarlierCredentials::Good);
        // Those that may not ask about the account are good.
        let denied = AccountCheck::Unasked.after(&Err(refused(403, "AccessDeniedException")));
        let lost = denied.after(&missing()).after(&expired());
        assert_eq!(before(&lost), EarlierCredentials::Good);
    }

    #[test]
    fn an_answer_about_the_account_is_evidence_where_it_says_something() {
        use Evidence::{Against, For, None};
        let account = Account {
            max_send_rate: 14.0,
            max_24_hour_send: Some(200.0),
            sent_last_24_hours: 3.0,
            sending: Sending::Enabled,
            access: pillarbox_ses::account::Access::Production,
            standing: EnforcementStatus::Healthy,
            engagement: pillarbox_ses::account::Engagement::NotSaid,
            suppressed_reasons: Vec::new(),
        };
        let used_up = Account { sent_last_24_hours: 200.0, ..account.clone() };
        let shut = Account { standing: EnforcementStatus::Shutdown, ..account.clone() };
        let disabled = Account { sending: Sending::Disabled, ..account.clone() };
        let unreachable = CallError::Unreachable("no connection".to_owned());
        for (answer, expected) in [
            (Ok(account), [Against, Against, Against]),
            (Ok(used_up), [Against, For, Against]),
            (Ok(shut), [Against, Against, For]),
            (Ok(disabled), [Against, Against, For]),
            (Err(refused(403, "AccessDeniedException")), [Against, None, None]),
            (Err(refused(429, "TooManyRequestsException")), [Against, None, None]),
            (Err(refused(500, "InternalServiceErrorException")), [For, None, None]),
            (Err(unreachable), [For, None, None]),
            (Err(CallError::NotSupported { status: 404 }), [None, None, None]),
            (Err(CallError::Credentials(LoadError::None)), [None, None, None]),
        ] {
            let says = evidence(&answer);
            let said = [Cause::Unreachable, Cause::QuotaExhausted, Cause::AccountPaused].map(&says);
            assert_eq!(said, expected, "{answer:?}");
            assert_eq!(says(Cause::SetupFault), None);
        }
    }
}
