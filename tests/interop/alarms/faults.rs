//! Faults: the way to cause each, the alarms that must fire for it, and the text that the
//! operators' page must show. Faults that take more than some lines are in `injections.rs`.

use std::future::pending;
use std::pin::Pin;
use std::time::{Duration, SystemTime};

use pillarbox_simulator::{Fault as Call, FaultScope, Faults, Options};
use reqwest::StatusCode;
use tokio::time::sleep;

use crate::alarms::injections::{
    DAMAGED, FILES, add_webhook, answer_another, bounce_and_complain, calls_fail, damage,
    delete_data_file, disturb_database, fill_disk, fill_queue, hold_sessions, hold_with_keys, jump,
    kill, on_database, pause_and_send, refuse_alerts, slow_disk, stop, use_files, use_quota,
};
use crate::alarms::site::{Metrics, Monitored, Place, Setup, impaired, is, value};

/// Something that goes wrong at a site of its own.
pub(crate) struct Fault {
    /// The site's name, which is the instance's in Prometheus.
    pub(crate) name: &'static str,
    pub(crate) setup: fn() -> Setup,
    /// Makes it go wrong, and keeps it so.
    pub(crate) inject:
        for<'a> fn(&'a mut Monitored) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>,
    /// The alarms that fire, each with the cause or organisation that it names. No other may.
    pub(crate) alarms: &'static [&'static str],
    pub(crate) page: &'static [Told],
}

/// Text of the page about a fault.
pub(crate) struct Told {
    pub(crate) text: &'static str,
    /// True if the service knows of it, by its own metrics.
    pub(crate) known: fn(&Metrics) -> bool,
}

/// Every alarm is in here.
pub(crate) const FAULTS: [Fault; 37] = [
    Fault {
        name: "in order",
        setup: Setup::default,
        inject: |site| Box::pin(async { site.keep_sending(2.0).await }),
        alarms: &[],
        page: &[],
    },
    Fault {
        name: "stopped",
        // A call under way holds the process up, so that its stopping can be seen.
        setup: || with(Options { latency: Duration::from_secs(6), ..Setup::default().options }),
        inject: |site| Box::pin(stop(site)),
        alarms: &["PillarboxDown"],
        page: &[Told {
            text: "The service is stopping",
            known: |metrics| is(metrics, "pillarbox_stopping", 1),
        }],
    },
    Fault {
        name: "killed and started again",
        setup: || with(Options { latency: Duration::from_mins(5), ..Setup::default().options }),
        inject: |site| Box::pin(kill(site)),
        // No question of the new process is answered in time.
        alarms: &["PillarboxBodiesLost", "PillarboxSendingPaused unreachable"],
        // A new process has a new key to its page, so a page that was open before cannot show it.
        page: &[],
    },
    Fault {
        name: "bodies of others are kept",
        setup: || Setup { place: Place::OtherBodies, ..Setup::default() },
        inject: |site| Box::pin(async { site.keep_sending(2.0).await }),
        alarms: &["PillarboxBodiesUnusable"],
        // It is so from the start, so a page cannot be open before.
        page: &[],
    },
    Fault {
        name: "provider down",
        setup: Setup::default,
        inject: |site| Box::pin(calls_fail(site, Call::Down)),
        alarms: &[
            "PillarboxSendingPaused unreachable",
            "PillarboxQueueStuck",
            "PillarboxOutcomesUnknown",
            "PillarboxEventsUnavailable",
        ],
        page: &[Told {
            text: "Sending is paused: no call to the provider succeeds",
            known: |metrics| impaired(metrics, "unreachable"),
        }],
    },
    Fault {
        name: "account paused until an organisation's share of the queue is full",
        setup: || Setup {
            more: "max_request_bytes = 65536\n[sending]\nmax_pending_bytes = 400000\n",
            ..Setup::default()
        },
        inject: |site| Box::pin(fill_queue(site)),
        alarms: &[
            "PillarboxSendingPaused account_paused",
            "PillarboxQueueStuck",
            "PillarboxQueueFilling",
            "PillarboxRefusesForWantOfRoom",
        ],
        page: &[
            Told {
                text: "the account is not allowed to send",
                known: |metrics| impaired(metrics, "account_paused"),
            },
            Told {
                text: "The queue is full for acme",
                known: |metrics| value(metrics, "pillarbox_queue_share_ratio") >= 1.0,
            },
        ],
    },
    Fault {
        name: "quota used up",
        setup: Setup::default,
        inject: |site| Box::pin(calls_fail(site, Call::QuotaExhausted)),
        alarms: &["PillarboxSendingPaused quota_exhausted", "PillarboxQueueStuck"],
        page: &[Told {
            text: "Sending is paused: the account's daily quota is used up",
            known: |metrics| impaired(metrics, "quota_exhausted"),
        }],
    },
    Fault {
        name: "quota nearly used up",
        setup: || with(Options { daily_quota: Some(100), ..Setup::default().options }),
        inject: |site| Box::pin(use_quota(site)),
        alarms: &["PillarboxQuotaLow"],
        page: &[Told {
            text: "of the account's daily quota of 100",
            known: |metrics| value(metrics, "pillarbox_quota_left_recipients") < 10.0,
        }],
    },
    Fault {
        name: "organisation near its limit",
        setup: Setup::default,
        inject: |site| {
            Box::pin(async {
                site.done(&["org", "limit", "acme", "--per-month", "10"]);
                for _ in 0..9 {
                    site.send().await;
                }
                pending::<()>().await;
            })
        },
        alarms: &["PillarboxOrganisationNearLimit acme"],
        page: &[Told {
            text: "acme has used 9 of the 10 recipients that it may send to per month",
            known: |metrics| {
                let ratio =
                    "pillarbox_organisation_limit_ratio{organisation=\"acme\",period=\"month\"}";
                value(metrics, ratio) >= 0.8
            },
        }],
    },
    Fault {
        name: "access denied",
        setup: Setup::default,
        inject: |site| Box::pin(calls_fail(site, Call::AccessDenied)),
        alarms: &["PillarboxSendingPaused setup_fault", "PillarboxQueueStuck"],
        page: &[Told {
            text: "Sending is paused: credentials, permissions or the configuration set are at fault",
            known: |metrics| impaired(metrics, "setup_fault"),
        }],
    },
    Fault {
        name: "credentials refused",
        setup: Setup::default,
        inject: |site| {
            Box::pin(async {
                let expired = Faults::always(Call::ExpiredToken);
                site.simulator().set_faults(expired.with_scope(FaultScope::OtherCalls));
                site.reload();
                pending::<()>().await;
            })
        },
        alarms: &["PillarboxCredentialsUnusable credentials_refused"],
        page: &[Told {
            text: "Nothing can be sent: AWS refuses the credentials",
            known: |metrics| {
                is(metrics, "pillarbox_account_fault{cause=\"credentials_refused\"}", 1)
            },
        }],
    },
    Fault {
        name: "account access denied",
        setup: Setup::default,
        inject: |site| {
            Box::pin(async {
                let denied = Faults::always(Call::AccessDenied);
                site.simulator().set_faults(denied.with_scope(FaultScope::OtherCalls));
                site.reload();
                site.keep_sending(2.0).await;
            })
        },
        alarms: &["PillarboxAccountAccessDenied account_access_denied"],
        page: &[Told {
            text: "SES does not let pillarbox read the account's rate and quota",
            known: |metrics| {
                is(metrics, "pillarbox_account_fault{cause=\"account_access_denied\"}", 1)
            },
        }],
    },
    Fault {
        name: "calls for one organisation not answered",
        setup: || Setup {
            organisations: &["acme", "other"],
            more: "[sending]\nretry_initial = \"4m\"\n",
            ..Setup::default()
        },
        inject: |site| Box::pin(answer_another(site)),
        alarms: &["PillarboxOrganisationPaused", "PillarboxQueueStuck", "PillarboxOutcomesUnknown"],
        page: &[Told {
            text: "All calls for acme fail",
            known: |metrics| is(metrics, "pillarbox_paused_organisations", 1),
        }],
    },
    Fault {
        name: "paused by an operator until messages end",
        setup: || Setup { more: "[sending]\nretry_for = \"50m\"\n", ..Setup::default() },
        inject: |site| Box::pin(pause_and_send(site)),
        alarms: &["PillarboxPausedMessagesEnd"],
        page: &[
            Told {
                text: "acme has been paused by an operator",
                known: |metrics| is(metrics, "pillarbox_organisations_paused_by_operators", 1),
            },
            Told {
                text: "acme is paused, and its first waiting message",
                known: |metrics| metrics.contains_key("pillarbox_paused_first_end_seconds"),
            },
        ],
    },
    Fault {
        name: "messages refused in the same words",
        setup: Setup::default,
        inject: |site| Box::pin(calls_fail(site, Call::BadRequest)),
        // The first four fail.
        alarms: &["PillarboxRefusalsHeld", "PillarboxMessagesFail acme", "PillarboxQueueStuck"],
        page: &[Told {
            text: "The provider refuses messages of acme with the same error text",
            known: |metrics| is(metrics, "pillarbox_held_refusals", 1),
        }],
    },
    Fault {
        name: "domain refused",
        setup: Setup::default,
        inject: |site| Box::pin(calls_fail(site, Call::MailFromDomainNotVerified)),
        alarms: &["PillarboxDomainPaused", "PillarboxQueueStuck"],
        page: &[Told {
            text: "The provider does not accept example.com of acme",
            known: |metrics| is(metrics, "pillarbox_paused_domains", 1),
        }],
    },
    Fault {
        name: "throttled",
        setup: Setup::default,
        inject: |site| {
            Box::pin(async {
                let faults = Faults::none().with_probability(Call::Throttled, 0.5).unwrap();
                site.simulator().set_faults(faults);
                site.keep_sending(3.0).await;
            })
        },
        alarms: &["PillarboxThrottled"],
        page: &[Told {
            text: "SES throttled",
            known: |metrics| {
                value(metrics, "pillarbox_attempts_total{outcome=\"throttled\"}") >= 3.0
            },
        }],
    },
    Fault {
        name: "provider slow",
        setup: Setup::default,
        inject: |site| {
            Box::pin(async {
                site.simulator().set_latency(Duration::from_secs(3));
                site.keep_sending(1.0).await;
            })
        },
        alarms: &["PillarboxProviderSlow"],
        page: &[Told {
            text: "calls to the provider took over 2.5 seconds",
            known: |metrics| above(metrics, "pillarbox_attempt_duration_seconds", "2.5") >= 3.0,
        }],
    },
    Fault {
        name: "answer lost",
        setup: Setup::default,
        inject: |site| {
            Box::pin(async {
                loop {
                    // Others go through, or it would be the provider that is down.
                    site.simulator().script(vec![Call::ResetAfter, Call::Pass]);
                    site.send().await;
                    site.send().await;
                    sleep(Duration::from_secs(10)).await;
                }
            })
        },
        alarms: &["PillarboxOutcomesUnknown"],
        page: &[Told {
            text: "got no answer",
            known: |metrics| value(metrics, "pillarbox_attempts_total{outcome=\"unknown\"}") > 0.0,
        }],
    },
    Fault {
        name: "messages rejected",
        setup: Setup::default,
        inject: |site| {
            Box::pin(async {
                loop {
                    site.simulator().script(vec![Call::Rejected]);
                    site.send().await;
                    sleep(Duration::from_secs(10)).await;
                }
            })
        },
        alarms: &["PillarboxMessagesFail acme"],
        page: &[Told {
            text: "of acme failed",
            known: |metrics| {
                value(
                    metrics,
                    "pillarbox_organisation_failed_messages_total{organisation=\"acme\"}",
                ) > 0.0
            },
        }],
    },
    Fault {
        name: "bounces and complaints",
        setup: || Setup {
            organisations: &[
                "bounces-some",
                "bounces-many",
                "complaints-some",
                "complaints-many",
                "small",
            ],
            ..Setup::default()
        },
        inject: |site| Box::pin(bounce_and_complain(site)),
        alarms: &[
            "PillarboxBounceRateHigh bounces-some",
            "PillarboxBounceRateHigh bounces-many",
            "PillarboxBounceRateAboveLimit bounces-many",
            "PillarboxComplaintRateHigh complaints-some",
            "PillarboxComplaintRateHigh complaints-many",
            "PillarboxComplaintRateAboveLimit complaints-many",
        ],
        page: &[
            Told {
                text: "bounces-some's bounce rate of the last 24 hours is",
                known: |metrics| bounced(metrics, "bounces-some") > 0.025,
            },
            Told {
                text: "bounces-many's bounce rate of the last 24 hours is",
                known: |metrics| bounced(metrics, "bounces-many") > 0.025,
            },
            Told {
                text: "complaints-some's complaint rate of the last 24 hours is",
                known: |metrics| complained(metrics, "complaints-some") > 0.000_5,
            },
            Told {
                text: "complaints-many's complaint rate of the last 24 hours is",
                known: |metrics| complained(metrics, "complaints-many") > 0.000_5,
            },
        ],
    },
    Fault {
        name: "events refused",
        setup: Setup::default,
        inject: |site| {
            Box::pin(async {
                let faults = Faults::always(Call::AccessDenied);
                site.simulator().set_faults(faults.with_scope(FaultScope::QueueCalls));
                pending::<()>().await;
            })
        },
        alarms: &["PillarboxEventsUnavailable"],
        page: &[Told {
            text: "Delivery events cannot be read",
            known: |metrics| is(metrics, "pillarbox_events_available", 0),
        }],
    },
    Fault {
        name: "events unreadable",
        setup: Setup::default,
        inject: |site| {
            Box::pin(async {
                loop {
                    site.simulator().publish("{\"eventType\":\"Bounce\"").unwrap();
                    sleep(Duration::from_secs(10)).await;
                }
            })
        },
        alarms: &["PillarboxEventsUnreadable"],
        page: &[Told {
            text: "set aside as dead letters",
            known: |metrics| value(metrics, "pillarbox_dead_letters") > 0.0,
        }],
    },
    Fault {
        name: "clock jumped by 92 days",
        setup: || Setup { place: Place::ClockOff("-92d"), ..Setup::default() },
        inject: |site| Box::pin(jump(site)),
        alarms: &["PillarboxClockJumped", "PillarboxPurgeBehind"],
        page: &[
            Told {
                text: "The clock jumped",
                known: |metrics| is(metrics, "pillarbox_clock_jumped", 1),
            },
            Told {
                text: "Records are kept for longer than 90 days",
                known: |metrics| is(metrics, "pillarbox_clock_jumped", 1),
            },
        ],
    },
    Fault {
        name: "database without its standby and one of its nodes",
        setup: on_database,
        inject: |site| Box::pin(disturb_database(site)),
        alarms: &["PillarboxNodeSilent", "PillarboxStandbyLost", "PillarboxClocksDiffer"],
        page: &[
            Told {
                text: "Node gone has given no sign of life",
                known: |metrics| value(metrics, r#"pillarbox_nodes{state="silent"}"#) > 0.0,
            },
            Told {
                text: "Commits no longer wait for a standby",
                known: |metrics| is(metrics, "pillarbox_postgres_standby_lost", 1),
            },
            Told {
                text: "seconds ahead of the database's",
                known: |metrics| value(metrics, "pillarbox_postgres_clock_offset_seconds") < -5.0,
            },
        ],
    },
    Fault {
        name: "disk full",
        setup: || Setup { place: Place::SmallDisk("6m"), ..Setup::default() },
        inject: |site| Box::pin(fill_disk(site)),
        alarms: &["PillarboxStoreRefusesWrites", "PillarboxQueueStuck"],
        page: &[
            Told {
                text: "The store refuses writes",
                known: |metrics| is(metrics, "pillarbox_store_writable", 0),
            },
            Told {
                text: "Outcomes of calls wait for the store",
                known: |metrics| value(metrics, "pillarbox_store_unrecorded_outcomes") > 0.0,
            },
        ],
    },
    Fault {
        name: "data file deleted",
        setup: Setup::default,
        inject: |site| Box::pin(delete_data_file(site)),
        alarms: &["PillarboxDataFileLost"],
        page: &[Told {
            text: "the data file is gone",
            known: |metrics| is(metrics, "pillarbox_store_file_in_place", 0),
        }],
    },
    Fault {
        name: "disk slow",
        setup: Setup::default,
        inject: |site| Box::pin(slow_disk(site)),
        alarms: &["PillarboxCommitsSlow"],
        page: &[Told {
            text: "commits took over half a second",
            known: |metrics| {
                above(metrics, "pillarbox_store_commit_duration_seconds", "0.5") >= 3.0
            },
        }],
    },
    Fault {
        name: "row damaged",
        setup: || Setup { prepare: damage, ..Setup::default() },
        inject: |site| {
            Box::pin(async {
                loop {
                    let status = site.read(&DAMAGED.to_string()).await;
                    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
                    sleep(Duration::from_secs(1)).await;
                }
            })
        },
        alarms: &["PillarboxInternalErrors", "PillarboxRowsDamaged"],
        page: &[
            Told {
                text: "failed because of a fault in the service",
                known: |metrics| {
                    value(metrics, "pillarbox_refusals_total{code=\"InternalError\"}") > 0.0
                },
            },
            Told {
                text: "1 row of the store cannot be read",
                known: |metrics| is(metrics, "pillarbox_store_damaged_rows", 1),
            },
        ],
    },
    Fault {
        name: "task panics",
        setup: Setup::default,
        inject: |site| {
            Box::pin(async {
                site.kill();
                site.start_with(&[("TEST_TASK_PANICS", "purge")]).await;
                pending::<()>().await;
            })
        },
        alarms: &["PillarboxTaskFails"],
        // A new process has a new key to its page, so a page that was open before cannot show it.
        page: &[],
    },
    Fault {
        name: "connections used up",
        setup: || Setup {
            more: "max_connections = 10\n",
            organisations: &["acme", "beta", "gamma"],
            ..Setup::default()
        },
        inject: |site| {
            Box::pin(async {
                let clients = site.base.strip_prefix("http://").unwrap();
                // As many as each may have.
                let keys = [("acme", 5), ("beta", 3), ("gamma", 1)];
                hold_with_keys(clients, &keys.map(|(name, count)| (site.key(name), count))).await;
            })
        },
        alarms: &["PillarboxConnectionsNearLimit"],
        page: &[Told {
            text: "of 10 client connections are open",
            known: |metrics| value(metrics, "pillarbox_connections") > 8.0,
        }],
    },
    Fault {
        name: "SMTP connections used up",
        setup: || Setup {
            more: "max_connections = 10\n[smtp]\nlisten = \"127.0.0.1:0\"\n",
            organisations: &["acme", "beta", "gamma"],
            ..Setup::default()
        },
        inject: |site| {
            Box::pin(async {
                // As many as each may have.
                let keys = [("acme", 5), ("beta", 3), ("gamma", 1)];
                let keys = keys.map(|(name, sessions)| (site.key(name), sessions));
                hold_sessions(&site.smtp(), &keys).await;
            })
        },
        alarms: &["PillarboxConnectionsNearLimit"],
        page: &[Told {
            text: "of 10 client connections are open",
            known: |metrics| value(metrics, "pillarbox_smtp_connections") > 8.0,
        }],
    },
    Fault {
        name: "files used up",
        setup: || Setup { place: Place::FewFiles(FILES), ..Setup::default() },
        inject: |site| Box::pin(use_files(site)),
        alarms: &["PillarboxConnectionsNearLimit"],
        page: &[Told {
            text: "of 100 file descriptors are open",
            known: |metrics| value(metrics, "process_open_fds") > 80.0,
        }],
    },
    Fault {
        name: "certificate not renewed",
        setup: || Setup { tls: true, ..Setup::default() },
        inject: |site| {
            Box::pin(async {
                site.renew_certificate(Duration::from_hours(10 * 24));
                site.until(|metrics| renewal(metrics) < unix_seconds()).await;
                std::fs::write(site.path("crt"), "not a certificate").unwrap();
                site.reload();
                pending::<()>().await;
            })
        },
        alarms: &["PillarboxCertificateExpires", "PillarboxCertificateRefused"],
        page: &[
            Told {
                text: "The certificate expires at",
                known: |metrics| renewal(metrics) < unix_seconds(),
            },
            Told {
                text: "The new certificate cannot be used",
                known: |metrics| is(metrics, "pillarbox_certificate_refused", 1),
            },
        ],
    },
    Fault {
        name: "endpoint fails",
        setup: Setup::default,
        inject: |site| Box::pin(add_webhook(site, 500)),
        alarms: &["PillarboxWebhookFailing acme"],
        page: &[Told {
            text: "Endpoint 1 of acme does not accept events (status 500)",
            known: |metrics| is(metrics, &webhook("failing"), 1),
        }],
    },
    Fault {
        name: "endpoint is gone",
        setup: Setup::default,
        inject: |site| Box::pin(add_webhook(site, 410)),
        alarms: &["PillarboxWebhookGone acme"],
        page: &[Told {
            text: "Endpoint 1 of acme answered 410",
            known: |metrics| is(metrics, &webhook("gone"), 1),
        }],
    },
    Fault {
        name: "alerts do not get through",
        setup: Setup::default,
        inject: |site| Box::pin(refuse_alerts(site)),
        alarms: &["PillarboxAlertsFailing"],
        page: &[Told {
            text: "Alerts do not get through (status 500)",
            known: |metrics| is(metrics, "pillarbox_alerts_failing", 1),
        }],
    },
];

/// The series of the one endpoint.
fn webhook(name: &str) -> String {
    format!("pillarbox_webhook_{name}{{organisation=\"acme\",webhook=\"1\"}}")
}

fn with(options: Options) -> Setup {
    Setup { options, ..Setup::default() }
}

/// Number of values of a histogram above one of its bounds.
fn above(metrics: &Metrics, histogram: &str, bound: &str) -> f64 {
    value(metrics, &format!("{histogram}_count"))
        - value(metrics, &format!("{histogram}_bucket{{le=\"{bound}\"}}"))
}

/// The share of an organisation's recipients that bounced for good.
fn bounced(metrics: &Metrics, organisation: &str) -> f64 {
    let of = |name: &str| {
        value(
            metrics,
            &format!(
                "pillarbox_organisation_{name}_recipients_total{{organisation=\"{organisation}\"}}"
            ),
        )
    };
    of("hard_bounced") / of("sent").max(1.0)
}

/// The share of an organisation's recipients who complained.
fn complained(metrics: &Metrics, organisation: &str) -> f64 {
    let label = format!("organisation=\"{organisation}\"");
    let complaints = value(
        metrics,
        &format!("pillarbox_organisation_events_total{{{label},type=\"complaint\"}}"),
    );
    complaints
        / value(metrics, &format!("pillarbox_organisation_sent_recipients_total{{{label}}}"))
            .max(1.0)
}

/// Time at which the certificate is to be renewed, in seconds since the Unix epoch.
fn renewal(metrics: &Metrics) -> f64 {
    value(metrics, "pillarbox_certificate_renewal_timestamp_seconds")
}

fn unix_seconds() -> f64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64()
}
