//! Alerts for operators: conditions that were raised and not cleared yet, and news that waits to be
//! posted.
//!
//! The node that finds an event writes the news. The node that posts writes the progress of the
//! posts. So a change keeps the other part of the row.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::record::alerts::{
    EXPIRIES_TOLD_KEY, FIRST_ALERT_KEY, decode_alert, decode_alert_key, decode_expiries_told,
    encode_alert, encode_alert_key, encode_expiries_told,
};
use crate::rows::{InTable, Key, KeyRange, Lock, Rows, Stop, Table, read_all};
use crate::{Alerting, Change, MAX_ALERTS, Store, StoreError};
use pillarbox_domain::alert::{Alert, AlertChange, AlertEvent, AlertKey};
use pillarbox_domain::api_key::expiry_notice_at;
use pillarbox_domain::organisation::ApiKeyEntry;
use pillarbox_domain::time::Timestamp;

impl Store {
    /// Sets whether this node has a receiver of alerts. Only if it has one, alerts of other parts
    /// of the service are kept, and the node may take the duty for them.
    pub fn set_alerting(&self, alerting: Alerting) {
        self.memory().alerting.set(alerting);
    }

    /// Returns all alerts. One that cannot be read is left out, and written anew if it is raised
    /// again.
    pub async fn alerts(&self) -> Result<Vec<(AlertKey, Alert)>, StoreError> {
        // As many as there can be: several nodes may each add the last one at the same time.
        let rows = self.rows(Table::Alerts, all_alerts(), 2 * MAX_ALERTS).await?;
        let found = rows.into_iter().filter_map(|(key, row)| {
            let id = format!("{:?}", String::from_utf8_lossy(key.bytes()));
            let read = decode_alert_key(key.bytes()).and_then(|key| Ok((key, decode_alert(&row)?)));
            self.damage().left_out(read.in_table(Table::Alerts, id))
        });
        Ok(found.collect())
    }

    /// Makes changes of alerts. An alert that is new has no room if there are [`MAX_ALERTS`].
    pub async fn change_alerts(
        &self,
        changes: Vec<(AlertKey, AlertChange)>,
    ) -> Result<(), StoreError> {
        if changes.is_empty() {
            return Ok(());
        }
        let weight = changes.len() * ROWS_OF_A_CHANGE;
        self.change(Lock::Rows, weight, move |rows| change_all(rows, &changes)).await
    }

    /// Keeps an alert for each API key that ends soon, once for each key. `None` if nothing
    /// changed.
    pub async fn tell_of_expiring_keys(&self, now: Timestamp) -> Result<Change, StoreError> {
        // Before the transaction: most checks find nothing.
        let told = self.row(Table::Alerts, Key::from(EXPIRIES_TOLD_KEY)).await?;
        let directory = self.directory().load();
        if expiring(&directory.api_keys, told_to(told), now).next().is_none() {
            return Ok(Change::None);
        }
        drop(directory);
        self.change(Lock::Directory, 1, move |rows| tell_of_expiring(rows, now)).await
    }
}

/// State of this node's receiver, which may change while the node runs.
#[derive(Debug, Default)]
pub(super) struct AlertingState(AtomicBool);

impl AlertingState {
    pub(super) fn get(&self) -> Alerting {
        if self.0.load(Ordering::Relaxed) { Alerting::On } else { Alerting::Off }
    }

    fn set(&self, alerting: Alerting) {
        self.0.store(alerting == Alerting::On, Ordering::Relaxed);
    }
}

fn all_alerts() -> KeyRange {
    KeyRange { from: Key::from(FIRST_ALERT_KEY), ..KeyRange::all() }
}

/// Size of an alert in rows of usual size.
const ROWS_OF_A_CHANGE: usize = 4;

/// Keeps news of a subject, if this node has a receiver of alerts.
pub(super) fn put_news(
    rows: &mut dyn Rows,
    alerting: Alerting,
    key: &AlertKey,
    at: Timestamp,
    event: AlertEvent,
) -> Result<(), Stop> {
    match alerting {
        Alerting::Off => Ok(()),
        Alerting::On => change(rows, key, &AlertChange::news(at, event), &mut Room::default()),
    }
}

fn change_all(rows: &mut dyn Rows, changes: &[(AlertKey, AlertChange)]) -> Result<(), Stop> {
    let keys: Vec<_> = changes.iter().map(|(key, _)| Key::from(&*encode_alert_key(key))).collect();
    read_all(rows, Table::Alerts, &keys)?;
    let mut room = Room::default();
    changes.iter().try_for_each(|(key, one)| change(rows, key, one, &mut room))
}

fn change(
    rows: &mut dyn Rows,
    key: &AlertKey,
    change: &AlertChange,
    room: &mut Room,
) -> Result<(), Stop> {
    let key = Key::from(&*encode_alert_key(key));
    let row = rows.get(Table::Alerts, &key)?;
    // One that cannot be read is written anew.
    let before = row.as_deref().and_then(|row| decode_alert(row).ok());
    match change.apply(before) {
        Some(after) if row.is_some() || room.take(rows)? => {
            rows.put(Table::Alerts, &key, &encode_alert(&after))
        }
        None if row.is_some() => rows.remove(Table::Alerts, &key),
        Some(_) | None => Ok(()),
    }
}

/// Number of new alerts that still fit. It is counted once in a transaction, and only for a new
/// alert.
#[derive(Debug, Default)]
struct Room(Option<usize>);

impl Room {
    /// Takes the room of one alert; returns false if there is no room.
    fn take(&mut self, rows: &mut dyn Rows) -> Result<bool, Stop> {
        let left = if let Some(left) = self.0 {
            left
        } else {
            MAX_ALERTS - rows.range(Table::Alerts, &all_alerts(), MAX_ALERTS)?.len()
        };
        self.0 = Some(left.saturating_sub(1));
        Ok(left > 0)
    }
}

fn tell_of_expiring(rows: &mut dyn Rows, now: Timestamp) -> Result<Change, Stop> {
    let told = told_to(rows.get(Table::Alerts, &Key::from(EXPIRIES_TOLD_KEY))?);
    let directory = rows.directory();
    let mut done = Change::None;
    for (key, expires_at) in expiring(&directory.api_keys, told, now) {
        let (organisation, label) = (key.organisation, key.label.clone());
        let event = AlertEvent::KeyExpiring { organisation, label, expires_at };
        put_news(rows, Alerting::On, &AlertKey::KeyExpiry(key.id), now, event)?;
        done = Change::Made;
    }
    if done == Change::Made {
        rows.put(Table::Alerts, &Key::from(EXPIRIES_TOLD_KEY), &encode_expiries_told(now))?;
    }
    Ok(done)
}

/// Keys that end soon at `now` and did not yet at the last check, at `told`, with their ends.
fn expiring(
    keys: &[ApiKeyEntry],
    told: Timestamp,
    now: Timestamp,
) -> impl Iterator<Item = (&ApiKeyEntry, Timestamp)> {
    keys.iter().filter_map(move |key| {
        let end = key.expires_at?;
        let at = expiry_notice_at(key.created_at, end);
        (end > now && at > told && at <= now).then_some((key, end))
    })
}

fn told_to(row: Option<Vec<u8>>) -> Timestamp {
    // A key's news may be posted twice, but is not lost.
    let told = row.and_then(|row| decode_expiries_told(&row).ok());
    told.unwrap_or(Timestamp::from_unix_millis(0))
}
