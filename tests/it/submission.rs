//! Messages that come whole over SMTP: the fields that say who sends, and how they are read.

use pillarbox_simulator::{CapturedMessage, Options};
use serde_json::{Value, json};

use crate::kit::{Server, Site, SmtpClient, accepted_id, codes};

const LISTEN: &str = "[smtp]\nlisten = \"127.0.0.1:0\"\n";

struct Submitting {
    site: Site,
    server: Server,
    client: SmtpClient,
}

impl Submitting {
    async fn start() -> Self {
        let site = Site::with(LISTEN, Options::default()).await;
        let server = site.start();
        let client = SmtpClient::login(server.process.smtp_listening(), &server.key).await.unwrap();
        Self { site, server, client }
    }

    async fn reply(&mut self, fields: &str) -> String {
        let message = format!("{fields}\r\nHi\r\n");
        self.client.submit(&["bob@example.org"], &message).await.unwrap()
    }

    /// The last message that the provider was given, its record, and the record's sender.
    async fn sent(&mut self, fields: &str) -> (CapturedMessage, Value, String) {
        let reply = self.reply(fields).await;
        let id = accepted_id(&reply).unwrap_or_else(|| panic!("{fields}: {reply}")).to_owned();
        let record = self.server.wait_for(&id, "sent").await;
        let shown = self.site.done(&["message", "show", &id, "--json"]);
        let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
        let from = shown["from"].as_str().unwrap_or_else(|| panic!("{shown}")).to_owned();
        (CapturedMessage::clone(self.site.simulator.messages().last().unwrap()), record, from)
    }
}

#[tokio::test]
async fn whoever_a_message_names_as_sender_must_be_of_a_verified_domain() {
    let mut submitting = Submitting::start().await;
    let from = "From: ann@example.com\r\n";
    for field in ["Sender", "Resent-From", "Resent-Sender", "sender", "RESENT-FROM "] {
        for (value, expected) in [
            ("bob@example.com", "250 2.0.0"),
            ("Bob <bob@EXAMPLE.com>", "250 2.0.0"),
            ("eve@example.net", "550 5.7.1"),
            ("Eve\r\n <eve@sub.example.com>", "550 5.7.1"),
            ("", "550 5.6.0"),
            ("Eve", "550 5.6.0"),
            ("bob@example.com eve@example.net", "550 5.6.0"),
            ("<bob@example.com> <eve@example.net>", "550 5.6.0"),
            ("\"eve@example.net> (\"@example.com", "550 5.6.0"),
            ("=?utf-8?q?eve=40example.net?=@example.com", "550 5.6.0"),
        ] {
            let reply = submitting.reply(&format!("{from}{field}: {value}\r\n")).await;
            assert_eq!(codes(&reply), expected, "{field}: {value}");
            // Wherever it stands.
            let reply = submitting.reply(&format!("{field}: {value}\r\n{from}")).await;
            assert_eq!(codes(&reply), expected, "{field}: {value}");
        }
    }
    // A list may have several (RFC 5322, section 3.6.6); one sender is one.
    for (field, value, expected) in [
        ("Resent-From", "bob@example.com, Cy <cy@example.com>", "250 2.0.0"),
        ("Resent-From", "bob@example.com, eve@example.net", "550 5.7.1"),
        ("Resent-From", "\"a, b\" <bob@example.com>,\r\n eve@example.net", "550 5.7.1"),
        ("Resent-From", "bob@example.com,", "550 5.6.0"),
        ("Resent-From", "Group: bob@example.com;", "550 5.6.0"),
        ("Sender", "bob@example.com, cy@example.com", "550 5.6.0"),
        ("Resent-Sender", "bob@example.com, cy@example.com", "550 5.6.0"),
    ] {
        let reply = submitting.reply(&format!("{from}{field}: {value}\r\n")).await;
        assert_eq!(codes(&reply), expected, "{field}: {value}");
    }
    // Each of several: a message may be resent twice.
    let twice = "Resent-From: bob@example.com\r\nResent-From: ann@example.com\r\n";
    assert_eq!(codes(&submitting.reply(&format!("{twice}{from}")).await), "250 2.0.0");
    let second = "Resent-From: bob@example.com\r\nX-A: b\r\nResent-From: eve@example.net\r\n";
    assert_eq!(codes(&submitting.reply(&format!("{second}{from}")).await), "550 5.7.1");
}

#[tokio::test]
async fn a_field_that_there_is_once_does_not_come_twice() {
    let mut submitting = Submitting::start().await;
    for (name, value) in [
        ("From", "ann@example.com"),
        ("Sender", "ann@example.com"),
        ("Reply-To", "ann@example.com"),
        ("To", "bob@example.org"),
        ("Cc", "bob@example.org"),
        ("Bcc", "bob@example.org"),
        ("Date", "Wed, 25 Nov 2026 09:30:00 +0000"),
        ("Message-ID", "<1@example.com>"),
        ("In-Reply-To", "<1@example.com>"),
        ("References", "<1@example.com>"),
        ("Subject", "Hello"),
        ("MIME-Version", "1.0"),
        ("Content-Type", "text/plain"),
        ("Content-Transfer-Encoding", "7bit"),
    ] {
        let from = if name == "From" { "" } else { "From: ann@example.com\r\n" };
        let once = format!("{from}{name}: {value}\r\n");
        assert_eq!(codes(&submitting.reply(&once).await), "250 2.0.0", "{name}");
        let other = name.to_uppercase();
        for twice in
            [format!("{once}{other}: {value}\r\n"), format!("{name} : {value}\r\nX-A: b\r\n{once}")]
        {
            let reply = submitting.reply(&twice).await;
            assert_eq!(codes(&reply), "550 5.6.0", "{twice}");
            assert!(reply.to_lowercase().contains(&name.to_lowercase()), "{reply}");
        }
    }
    let others = "Received: x\r\nReceived: y\r\nComments: a\r\nComments: b\r\nKeywords: a\r\n\
                  Keywords: b\r\nResent-To: a@example.org\r\nResent-To: b@example.org\r\n\
                  X-A: 1\r\nX-A: 2\r\nFrom: ann@example.com\r\n";
    assert_eq!(codes(&submitting.reply(others).await), "250 2.0.0", "these there may be more of");
}

#[tokio::test]
async fn hidden_recipients_are_removed_also_when_a_message_is_resent() {
    let mut submitting = Submitting::start().await;
    let kept = "Resent-From: ann@example.com\r\nResent-To: cy@example.org\r\n\
                From: ann@example.com\r\n";
    let fields = format!(
        "Resent-Bcc: eve@example.org,\r\n dan@example.org\r\nRESENT-BCC : eve@example.org\r\n\
         {kept}Bcc: eve@example.org\r\n"
    );
    let (sent, ..) = submitting.sent(&fields).await;
    let raw = String::from_utf8(sent.raw.unwrap().to_vec()).unwrap();
    assert_eq!(raw, format!("{kept}\r\nHi\r\n"));
}

#[tokio::test]
async fn a_recipient_that_is_given_again_goes_upstream_once() {
    let mut submitting = Submitting::start().await;
    let given = [
        "bob@example.org",
        "Cy@example.org",
        "bob@example.org",
        "cy@EXAMPLE.org",
        "\"bob\"@example.org",
        "dan@example.org",
    ];
    let message = "From: ann@example.com\r\n\r\nHi\r\n";
    let reply = submitting.client.submit(&given, message).await.unwrap();
    let id = accepted_id(&reply).unwrap().to_owned();
    let record = submitting.server.wait_for(&id, "sent").await;
    assert_eq!(record["to"], json!(given), "the record has what was given");
    let [sent] = &submitting.site.simulator.messages()[..] else { panic!("one message") };
    assert_eq!(sent.to, ["bob@example.org", "Cy@example.org", "dan@example.org"]);
}

/// Display names and subjects as programs write them, and what people read.
const ENCODED: [(&str, &str); 16] = [
    ("=?ISO-2022-JP?B?GyRCQEE1YT1xGyhC?=", "\u{8acb}\u{6c42}\u{66f8}"),
    ("=?shift_jis?B?kL+LgY+R?=", "\u{8acb}\u{6c42}\u{66f8}"),
    ("=?EUC-JP?Q?=C0=C1=B5=E1=BD=F1?=", "\u{8acb}\u{6c42}\u{66f8}"),
    ("=?gb2312?B?xOO6ww==?=", "\u{4f60}\u{597d}"),
    ("=?gb18030?B?xOO6ww==?=", "\u{4f60}\u{597d}"),
    ("=?big5?B?p0GmbrFN?=", "\u{4f60}\u{597d}\u{5c08}"),
    ("=?ks_c_5601-1987?B?vsiz5w==?=", "\u{c548}\u{b155}"),
    ("=?koi8-r?Q?=F0=D2=C9=D7=C5=D4?=", "\u{41f}\u{440}\u{438}\u{432}\u{435}\u{442}"),
    ("=?windows-1252?Q?J=FCrgen_=80?=", "J\u{fc}rgen \u{20ac}"),
    ("=?iso-8859-1*de?q?J=FCrgen?=", "J\u{fc}rgen"),
    // A character of two bytes over two words, as Outlook and .NET write it.
    ("=?utf-8?B?SsM=?=\r\n =?utf-8?B?tnJn?=", "J\u{f6}rg"),
    ("=?utf-8?B?SsM=?=\r\n\t=?UTF-8?Q?=B6rg?=", "J\u{f6}rg"),
    ("=?shift_jis?B?kA==?=\r\n =?shift_jis?B?v4uBj5E=?=", "\u{8acb}\u{6c42}\u{66f8}"),
    // Each word has a state of its own.
    (
        "=?ISO-2022-JP?B?GyRCQEEbKEI=?=\r\n =?ISO-2022-JP?B?GyRCNWE9cRsoQg==?=",
        "\u{8acb}\u{6c42}\u{66f8}",
    ),
    // What cannot be decoded leaves what is ASCII.
    ("=?x-unknown?Q?Gr=FC=DFe?=", "Gre"),
    ("=?utf-8?Q?Gr=FC=DFe?=", "Gre"),
];

#[tokio::test]
async fn encoded_words_are_decoded_for_the_record_and_go_upstream_as_they_are() {
    let mut submitting = Submitting::start().await;
    for (written, read) in ENCODED {
        let fields = format!("From: {written} <ann@example.com>\r\nSubject: {written}\r\n");
        let (sent, record, from) = submitting.sent(&fields).await;
        assert_eq!(record["subject"], read, "{written}");
        assert_eq!(from, format!("{read} <ann@example.com>"), "{written}");
        let own: String = written.replace("\r\n", "").replace('\t', " ");
        assert_eq!(sent.from, format!("{own} <ann@example.com>"), "{written}");
        let raw = String::from_utf8(sent.raw.unwrap().to_vec()).unwrap();
        assert!(raw.starts_with(&fields), "{raw}");
    }
}

#[tokio::test]
async fn a_display_name_goes_upstream_in_its_own_words() {
    let mut submitting = Submitting::start().await;
    for (written, upstream, read) in [
        ("ann@example.com", "ann@example.com", "ann@example.com"),
        ("<ann@EXAMPLE.com> (Ann)", "ann@example.com", "ann@EXAMPLE.com"),
        (
            "Ann (the\r\n first)  Lee <ann@example.com>",
            "Ann Lee <ann@example.com>",
            "Ann Lee <ann@example.com>",
        ),
        (
            "\"Lee, Ann\" <ann@example.com>",
            "\"Lee, Ann\" <ann@example.com>",
            "\"Lee, Ann\" <ann@example.com>",
        ),
        (
            "\"A \\\"B\\\" C\" D. <ann@example.com>",
            "\"A \\\"B\\\" C\" D. <ann@example.com>",
            "\"A \\\"B\\\" C D.\" <ann@example.com>",
        ),
        (
            "=?utf-8?q?J=C3=B6rg?= \"M. L.\" <ann@example.com>",
            "=?utf-8?q?J=C3=B6rg?= \"M. L.\" <ann@example.com>",
            "J\u{f6}rg M. L. <ann@example.com>",
        ),
        (
            "[Shop] News <ann@example.com>",
            "\"[Shop]\" News <ann@example.com>",
            "[Shop] News <ann@example.com>",
        ),
        (
            "J\u{f6}rg <ann@example.com>",
            "=?utf-8?B?SsO2cmc=?= <ann@example.com>",
            "J\u{f6}rg <ann@example.com>",
        ),
    ] {
        let (sent, _, from) = submitting.sent(&format!("From: {written}\r\n")).await;
        assert_eq!(from, read, "{written}");
        if written.is_ascii() {
            assert_eq!(sent.from, upstream, "{written}");
        } else {
            assert!(
                sent.from.is_ascii() && sent.from.ends_with("?= <ann@example.com>"),
                "{}",
                sent.from
            );
        }
    }
}
