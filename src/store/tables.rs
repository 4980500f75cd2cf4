//! Tables of the store. Each is declared once, for the rules and for both engines.

use pillarbox_domain::worded;

/// The version of the data file's layout. A file of a newer version is refused.
pub const DATA_FORMAT: u64 = 7;

worded! {
    /// Table of rows that the rules read and change. The order of keys, as bytes, is the same on every
    /// engine. Its word is its name in a data file and in operators' reports of damaged rows. Rows are
    /// locked in the order of this list, which nodes of other versions have too: a new table is added
    /// at its end.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub(crate) enum Table {
        /// By number.
        Organisations = "organisations",
        /// By number.
        ApiKeys = "api_keys",
        /// By organisation and name.
        Domains = "domains",
        /// Endpoints by number.
        Webhooks = "webhooks",
        /// By endpoint.
        WebhookCursors = "webhook_cursors",
        /// Deliveries that wait for an attempt, by endpoint, time of the attempt and position.
        WaitingDeliveries = "webhook_waiting",
        /// Deliveries that failed, by endpoint and position.
        FailedDeliveries = "webhook_failed",
        /// By organisation and address.
        Suppressions = "suppressions",
        /// [Timed](crate::rows::timed) rows by the digest of the document.
        DeadLetters = "dead_letters",
        /// [Timed](crate::rows::timed) rows by the provider's id of the message, which ends with a NUL, and
        /// digest.
        UnmatchedEvents = "unmatched_events",
        /// By hour and organisation.
        History = "history",
        /// By message.
        Messages = "messages",
        /// By message and the key of the event.
        Events = "events",
        /// By message and the number of the step.
        Timeline = "timeline",
        /// By message.
        OverturnedFailures = "overturned_failures",
        /// By organisation and position.
        Feed = "feed",
        /// By the subject of the alert.
        Alerts = "alerts",
    }
}

/// Passes the declaration of every table to a macro of an engine.
///
/// For a data file: the field and the constant of the table, its name, the types of its key and its
/// row, and when readers see a new row. For a server, if the rules have the table: its name there,
/// the columns of its key, the column of its row, and what it has beside them.
macro_rules! with_tables {
    ($declare:ident) => {
        // A new table is added at the end: its number must not change.
        $declare! {
            /// Single values of the file itself.
            meta: META = "meta" (&'static str => u64) AtOnce,
            /// Message records.
            messages: MESSAGES = "messages" (IdKey => Row) ByKey
                Messages ("message" [Id("id")] "record" Organisation),
            /// Each organisation's messages, so that a listing reads no other organisation's. Its messages
            /// follow one another, so inserts go to the ends of as many runs as there are organisations.
            by_organisation: BY_ORGANISATION = "messages_by_organisation" ((u32, IdKey) => ()) OnDemand,
            /// Messages whose body is pending in memory.
            pending: PENDING = "pending" (IdKey => ()) OnDemand,
            /// The idempotency keys of the last 24 hours, by the message that each one made.
            idempotency: IDEMPOTENCY = "idempotency" (IdKey => Row) ByKey,
            /// Delivery events: message id, time, rank and digest, so that a repeat has the same key.
            events: EVENTS = "events" (Row => Row) AtOnce
                Events ("event" [Id("message"), Bytes("key")] "event" Nothing),
            /// Messages that the provider accepted, by the time of that and their id, with the provider's
            /// own id for them. By it, an event without our tag finds its message.
            sent: SENT = "sent" ((u64, IdKey) => Row) OnDemand,
            /// Events whose message is not known yet, by the provider's id for it, with the time of their
            /// arrival. Random keys are acceptable here, because the table is bounded.
            unmatched: UNMATCHED = "unmatched_events" (Row => TimedRow) AtOnce
                UnmatchedEvents ("unmatched_event" [Text("ses_message_id"), Bytes("digest")] "event" Time("received_at")),
            /// Documents that could not be read, by their digest, with the time of their arrival. Bounded
            /// too.
            dead_letters: DEAD_LETTERS = "dead_letters" (Row => TimedRow) AtOnce
                DeadLetters ("dead_letter" [Bytes("key")] "letter" Time("received_at")),
            /// Suppressed addresses by organisation.
            suppressions: SUPPRESSIONS = "suppressions" ((u32, &'static str) => Row) AtOnce
                Suppressions ("suppression" [Number("organisation"), Text("address")] "suppression" Position),
            /// Organisations by number.
            organisations: ORGANISATIONS = "organisations" (u32 => Row) AtOnce
                Organisations ("organisation" [Number("id")] "organisation" Nothing),
            /// Hashes of API keys by number.
            api_keys: API_KEYS = "api_keys" (u32 => Row) AtOnce
                ApiKeys ("api_key" [Number("id")] "api_key" Organisation),
            /// Sender domains by organisation.
            domains: DOMAINS = "domains" ((u32, &'static str) => Row) AtOnce
                Domains ("domain" [Number("organisation"), Text("name")] "domain" Nothing),
            /// Time at which each API key was last used, in milliseconds, by the key's number.
            key_use: KEY_USE = "key_use" (u32 => u64) AtOnce,
            /// Records that were pending at a start and could not be read, by message, with the time of
            /// that start.
            damaged_messages: DAMAGED_MESSAGES = "damaged_messages" (IdKey => TimedRow) AtOnce,
            /// File's record of the clock, under [`TIME_KEY`](crate::redb::tables::TIME_KEY).
            clock: CLOCK = "clock" (&'static str => Row) AtOnce,
            /// Entries of the event feed, by organisation and position. An organisation's entries follow
            /// one another, as its messages do.
            feed: FEED = "feed" ((u32, u64) => Row) OnDemand
                Feed ("feed" [Number("organisation"), Large("position")] "entry" Nothing),
            /// Failures of messages that an event later proved to be sent. Their records do not have the
            /// failures any more, and the feed still shows them.
            overturned: OVERTURNED = "overturned_failures" (IdKey => Row) AtOnce
                OverturnedFailures ("overturned_failure" [Id("id")] "failure" Nothing),
            /// Endpoints of webhooks by number.
            webhooks: WEBHOOKS = "webhooks" (u32 => Row) AtOnce
                Webhooks ("webhook" [Number("id")] "webhook" Organisation),
            /// Progress of each endpoint's deliveries, by the endpoint's number.
            webhook_cursors: WEBHOOK_CURSORS = "webhook_cursors" (u32 => Row) AtOnce
                WebhookCursors ("webhook_cursor" [Number("id")] "cursor" Nothing),
            /// Deliveries that wait for their next attempt: endpoint, time of that in milliseconds, and the
            /// event's position in the feed.
            webhook_waiting: WEBHOOK_WAITING = "webhook_waiting" ((u32, u64, u64) => Row) AtOnce
                WaitingDeliveries ("webhook_waiting" [Number("webhook"), Large("due"), Large("position")] "delivery" Nothing),
            /// Deliveries whose last attempt failed: endpoint, and the event's position in the feed.
            webhook_failed: WEBHOOK_FAILED = "webhook_failed" ((u32, u64) => Row) AtOnce
                FailedDeliveries ("webhook_failed" [Number("webhook"), Large("position")] "delivery" Nothing),
            /// Counts of the events in each hour, by the hour's number and the organisation; those of all
            /// organisations together are under [`ALL_ORGANISATIONS`].
            history: HISTORY = "history" ((u32, u32) => Row) OnDemand
                History ("history" [Number("hour"), Number("organisation")] "counts" Nothing),
            /// Steps of messages' timelines: message and number of the step.
            timeline: TIMELINE = "timeline" ((IdKey, u32) => Row) OnDemand
                Timeline ("timeline" [Id("message"), Number("number")] "step" Nothing),
            /// Recipients that were accepted, by organisation and the beginning of the month in
            /// milliseconds.
            usage: USAGE = "usage" ((u32, u64) => Row) OnDemand,
            /// Alerts that were raised and are not cleared, or that wait to be posted, by their subject.
            alerts: ALERTS = "alerts" (Row => Row) AtOnce
                Alerts ("alert" [Bytes("key")] "alert" Nothing),
        }
    };
}

pub(crate) use with_tables;
