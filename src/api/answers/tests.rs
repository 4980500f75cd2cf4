use super::*;
use pillarbox_domain::event::{BounceType, EventDetail, EventType, LastEvent};
use pillarbox_domain::id::OrganisationId;
use pillarbox_domain::message::{Acceptance, Failure, FailureCode, State};
use pillarbox_domain::message_terms::Terms;
use pillarbox_domain::time::Timestamp;

fn queued() -> Message {
    Message {
        id: "019aa5a0-5c00-7000-8000-000000000001".parse().unwrap(),
        organisation: OrganisationId(1),
        created_at: Timestamp::from_unix_millis(1_795_253_400_123),
        from: "ann@example.com".into(),
        recipients: vec!["bob@x.org".into(), "Eve \"E\" <eve@x.org>".into()],
        subject: "Hi".into(),
        metadata: None,
        terms: Terms::NONE,
        attempts: 1,
        state: State::Queued { last_failure: None, acceptance: Acceptance::Excluded },
        last_event: None,
        calling: None,
    }
}

const TO: &str =
    r#""to":["bob@x.org","Eve \"E\" <eve@x.org>"],"subject":"Hi","tag":"transactional""#;

#[test]
fn a_record_has_every_field_of_the_specification() {
    assert_eq!(
        message(OrganisationKind::Production, queued(), None),
        format!(
            r#"{{"id":"019aa5a0-5c00-7000-8000-000000000001","status":"queued",{TO},"attempts":1,"error":null,"sesMessageId":null,"createdAt":"2026-11-21T09:30:00.123Z","sentAt":null,"lastEvent":null}}"#
        ) + "\n"
    );
    let mut sent = queued();
    sent.state = State::Sent {
        ses_message_id: "ses-1".into(),
        sent_at: Timestamp::from_unix_millis(1_795_253_401_000),
    };
    sent.last_event = Some(LastEvent {
        occurred_at: Timestamp::from_unix_millis(1_795_253_402_000),
        event_type: EventType::DeliveryDelay,
    });
    assert_eq!(
        message(OrganisationKind::Production, sent, Some(&Live::Sending { attempts: 9 })),
        format!(
            r#"{{"id":"019aa5a0-5c00-7000-8000-000000000001","status":"sent",{TO},"attempts":1,"error":null,"sesMessageId":"ses-1","createdAt":"2026-11-21T09:30:00.123Z","sentAt":"2026-11-21T09:30:01.000Z","lastEvent":{{"type":"delivery_delay","occurredAt":"2026-11-21T09:30:02.000Z"}}}}"#
        ) + "\n",
        "a final row is not overlaid"
    );
}

#[test]
fn the_live_state_is_laid_over_a_queued_row_and_its_failure_stays() {
    let mut waiting = queued();
    let failure = Failure {
        code: FailureCode::ProviderThrottled,
        message: "slow down".into(),
        provider_code: Some("TooManyRequestsException".into()),
    };
    waiting.state = State::Queued { last_failure: Some(failure), acceptance: Acceptance::Excluded };
    let bytes =
        message(OrganisationKind::Production, waiting, Some(&Live::Sending { attempts: 2 }));
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    assert!(text.contains(r#""status":"sending""#) && text.contains(r#""attempts":2"#), "{text}");
    let error = r#""error":{"code":"provider_throttled","message":"slow down","providerCode":"TooManyRequestsException"}"#;
    assert!(text.contains(error), "{text}");
}

#[test]
fn events_show_what_the_provider_told() {
    let event = |detail| Event {
        occurred_at: Timestamp::from_unix_millis(0),
        recipients: vec!["bob@x.org".into()],
        detail,
    };
    let bytes = events(&[
        event(EventDetail::Bounce {
            bounce_type: BounceType::Permanent,
            sub_type: "General".into(),
            diagnostic_code: Some("550".into()),
        }),
        event(EventDetail::Complaint { feedback_type: Some("abuse".into()), sub_type: None }),
        event(EventDetail::DeliveryDelay {
            delay_type: "MailboxFull".into(),
            diagnostic_code: None,
        }),
        event(EventDetail::Reject { reason: "Bad content".into() }),
        event(EventDetail::Delivery { smtp_response: Some("250 ok".into()) }),
    ]);
    let head = |kind: &str| {
        format!(
            r#"{{"type":"{kind}","occurredAt":"1970-01-01T00:00:00.000Z","recipients":["bob@x.org"],"detail":"#
        )
    };
    let expected = [
        head("bounce")
            + r#"{"bounceType":"Permanent","bounceSubType":"General","diagnosticCode":"550"}}"#,
        head("complaint") + r#"{"complaintFeedbackType":"abuse"}}"#,
        head("delivery_delay") + r#"{"delayType":"MailboxFull"}}"#,
        head("reject") + r#"{"rejectReason":"Bad content"}}"#,
        head("delivery") + r#"{"smtpResponse":"250 ok"}}"#,
    ];
    assert_eq!(bytes, format!(r#"{{"events":[{}]}}"#, expected.join(",")) + "\n");
    assert_eq!(events(&[]), "{\"events\":[]}\n");
    let accepted = accepted(queued().id);
    assert_eq!(accepted, "{\"id\":\"019aa5a0-5c00-7000-8000-000000000001\"}\n");
}
